"""What a run found, side by side, and its arithmetic: ratios are taken within a round. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from .figures import Spread, paired, percentile  # so that tests, to which this is another package, find it too

T = TypeVar("T")


class Place(NamedTuple):
    """When something was measured: `turn` counts within what is measured of this kind in this start."""

    start: int
    turn: int


class Twice(NamedTuple):
    """A prompt of `ids` that nobody has seen, and the same again when the engine has forgotten it.

    `cold` and `warm`: milliseconds to the first token. `computed`: positions of the prompt that the second time computed all the
    same. `stages`: where its time went.
    """

    ids: int
    cold: float
    warm: float
    computed: int
    stages: dict[str, float]


class Run(NamedTuple):
    """A workload without any hit: ids of prompts and answers per second, and per CPU second.

    `per_compute`: of the thread that computes; `per_cpu`: of everything that the side has running.
    """

    rate: float
    per_compute: float
    per_cpu: float


class Found:
    """Of all sides; one that failed has fewer."""

    def __init__(self) -> None:
        self._twice: dict[tuple[str, int], dict[Place, Twice]] = {}
        self._runs: dict[str, dict[Place, Run]] = {}
        self._late: Counter[tuple[str, bool]] = Counter()

    def add_twice(self, side: str, place: Place, twice: Twice) -> None:
        self._twice.setdefault((side, twice.ids), {})[place] = twice

    def add_run(self, side: str, place: Place, run: Run) -> None:
        self._runs.setdefault(side, {})[place] = run

    def forget(self, side: str, place: Place, *, twice: bool) -> None:
        """What `side` showed there, with (`twice`) or without hits: somebody else ran meanwhile."""
        for kept in [of for (name, _), of in self._twice.items() if name == side] if twice else [self._runs.get(side, {})]:
            kept.pop(place, None)

    def drop(self, side: str, place: Place, *, twice: bool) -> None:
        """As `forget`, and counted: its store had not yet saved what came again."""
        self.forget(side, place, twice=twice)
        self._late[side, twice] += 1

    def late(self, side: str, *, twice: bool) -> int:
        """Rounds that were dropped."""
        return self._late[side, twice]

    def twice(self, side: str, ids: int) -> list[Twice]:
        return list(self._twice.get((side, ids), {}).values())

    def runs(self, side: str) -> list[Run]:
        return list(self._runs.get(side, {}).values())

    def median(self, side: str, ids: int, what: Callable[[Twice], float]) -> float:
        """Raises ValueError without values."""
        return percentile([what(each) for each in self.twice(side, ids)], 0.5)

    def warm_over_cold(self, side: str, ids: int) -> Spread:
        """Each second time over its own first one. Raises ValueError without values."""
        mine = self.twice(side, ids)
        return paired([each.warm for each in mine], [each.cold for each in mine])

    def against(self, side: str, other: str, ids: int, what: Callable[[Twice], float]) -> Spread:
        """`side` over `other` within their rounds. Raises ValueError when they have none in common."""
        return _within(self._twice.get((side, ids), {}), self._twice.get((other, ids), {}), what)

    def warm_over_cold_of(self, side: str, other: str, ids: int) -> Spread:
        """`side`'s second time over the first one of `other` in the same round. Raises ValueError without common rounds."""
        mine, theirs = (self._twice.get((name, ids), {}) for name in (side, other))
        places = [place for place in mine if place in theirs]
        return paired([mine[place].warm for place in places], [theirs[place].cold for place in places])

    def runs_against(self, side: str, other: str, what: Callable[[Run], float], start: int | None = None) -> Spread:
        """As `against`; `start`: only in this one."""
        mine, theirs = (self._runs.get(name, {}) for name in (side, other))
        return _within({at: run for at, run in mine.items() if start in (None, at.start)}, theirs, what)

    def run_ratios(self, side: str, other: str, what: Callable[[Run], float]) -> list[float]:
        """Round by round; of rounds that both have."""
        mine, theirs = (self._runs.get(name, {}) for name in (side, other))
        return [what(mine[place]) / what(theirs[place]) for place in mine if place in theirs]


def _within(mine: Mapping[Place, T], theirs: Mapping[Place, T], what: Callable[[T], float]) -> Spread:
    places = [place for place in mine if place in theirs]
    return paired([what(mine[place]) for place in places], [what(theirs[place]) for place in places])
