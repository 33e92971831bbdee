"""What came of a scenario, and all of them as a matrix: rows of a table, or a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from charts.grid import Cell, draw
from deployment.traffic import Outcome, Seen
from failures.chain import WRONG_ANSWER
from failures.scenario import ENGINES, Phase, Scenario, allowed, allowed_beside

RECOVERY_SECONDS: Final = 5.0
"""What is slower is said, and a goal missed: other work on the machine makes everything slower."""
BACK_SECONDS: Final = 10.0
"""The same for a service that is no engine, from its start until it says to be ready: nothing of it may wait long."""


class Verdict(StrEnum):
    GOOD = "as it should be"
    SLOW = "as it should be, but slow"
    MISSED = "missed"
    """The request was not caught in its phase, so nobody was hurt: it says nothing of the product."""
    FAILED = "FAILED"


COLOURS: Final = {Verdict.GOOD: "#b7e1b0", Verdict.SLOW: "#ffe08a", Verdict.MISSED: "#dddddd", Verdict.FAILED: "#f28b82"}
SAID: Final = 160
"""Characters of what the client was told."""
CLEAN_ERROR: Final = "#cfe0f5"
"""As it should be, too: an error where nobody could take over."""


@dataclass(frozen=True, slots=True)
class Result:
    """`probe`: the request that was caught. `others`: those beside it. `failure`: why the scenario could not be run to its end.

    Seconds: `back` from when the victim went on or was started until everybody was ready again; `clients` from then until the
    last request of before had ended; `whole` from then, too, until these had ended and a new prompt went its whole way.
    `found`: a prompt that only tier a had was found there again. `left`: what was still held, or too many, by name.
    """

    scenario: Scenario
    probe: Outcome | None = None
    others: Counter[Seen] = field(default_factory=Counter)
    back: float = 0.0
    clients: float = 0.0
    whole: float = 0.0
    found: bool = False
    left: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    missed: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.faults():
            return Verdict.FAILED
        if self.missed:
            return Verdict.MISSED
        late = self.back > BACK_SECONDS and self.scenario.victim not in ENGINES
        return Verdict.SLOW if late or self.whole > RECOVERY_SECONDS else Verdict.GOOD

    @property
    def wrong(self) -> int:
        """Answers that were not those of one vLLM alone."""
        probe = self.probe is not None and self.probe.seen is Seen.WRONG
        return self.others[Seen.WRONG] + probe + self.failure.startswith(WRONG_ANSWER)

    def faults(self) -> list[str]:
        """Why this scenario is not as it has to be; [] if it is, or was missed."""
        if self.missed:
            return [f"left over: {self.left}"] if self.left else []
        if self.failure or self.probe is None:
            return [self.failure or "not run"]
        found = []
        if self.probe.seen not in allowed(self.scenario):
            found.append(f"the client saw: {self.probe.seen} {self.probe.text}")
        beside = allowed_beside(self.scenario)
        found += [f"{count} {seen} beside it" for seen, count in sorted(self.others.items()) if seen not in beside]
        if not self.found:
            found.append("an earlier prefix was not found again")
        if self.left:
            found.append(f"left over: {self.left}")
        return found

    def row(self) -> dict[str, Any]:
        said = self.faults() or ([self.missed] if self.missed else [])
        return {
            "phase": str(self.scenario.phase),
            "victim": self.scenario.victim,
            "how": str(self.scenario.how),
            "client": "-" if self.probe is None else str(self.probe.seen),
            "said": "" if self.probe is None else self.probe.text[:SAID],
            "others": ", ".join(f"{count} {seen}" for seen, count in sorted(self.others.items())),
            "back s": round(self.back, 2),
            "clients s": round(self.clients, 2),
            "whole s": round(self.whole, 2),
            "found again": "-" if self.missed else "yes" if self.found else "NO",
            "left": ", ".join(f"{name}: {value}" for name, value in self.left.items()) or "nothing",
            "verdict": f"{self.verdict}{': ' if said else ''}{'; '.join(said)}",
        }

    def words(self) -> str:
        """For the matrix: what the client saw and how long until all was whole, or what it was instead."""
        if self.verdict is Verdict.MISSED:
            return "missed"
        seen = "-" if self.probe is None else str(self.probe.seen)
        mark = {Verdict.FAILED: "FAILED: ", Verdict.SLOW: "slow: "}.get(self.verdict, "")
        return f"{mark}{seen} {self.whole:.1f}"


def matrix(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each victim and how, a column for each phase: what the client saw, and seconds until all was whole again."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        victim, how = result.scenario.victim, str(result.scenario.how)
        row = rows.setdefault((victim, how), {"victim": victim, "how": how} | {str(phase): "" for phase in Phase})
        row[str(result.scenario.phase)] = result.words()
    return list(rows.values())


def picture(results: Sequence[Result]) -> str:
    """The matrix as SVG. Raises ValueError without results."""
    columns = list(Phase)
    rows: dict[str, list[Cell | None]] = {}
    for result in results:
        name = f"{result.scenario.how} {result.scenario.victim}"
        row = rows.setdefault(name, [None] * len(columns))
        row[columns.index(result.scenario.phase)] = _cell(result)
    legend = {
        "right, whole within 5 s": COLOURS[Verdict.GOOD],
        "clean error, whole within 5 s": CLEAN_ERROR,
        "slower": COLOURS[Verdict.SLOW],
        "not caught": COLOURS[Verdict.MISSED],
        "FAILED": COLOURS[Verdict.FAILED],
    }
    return draw("What the client saw, and seconds until all was whole again", legend, [str(phase) for phase in columns], rows)


def _cell(result: Result) -> Cell:
    colour = COLOURS[result.verdict]
    if result.probe is None:
        return Cell(colour, [str(result.verdict)])
    if result.verdict is Verdict.GOOD and result.probe.seen is not Seen.RIGHT:
        colour = CLEAN_ERROR
    return Cell(colour, [str(result.probe.seen), f"{result.whole:.1f} s"])


class Total(NamedTuple):
    """Of a run. `wrong`: answers; `failed`, `missed` and `slow`: scenarios; `slowest`: the longest recovery in seconds."""

    wrong: int
    failed: int
    missed: int
    slow: int
    slowest: float


def total(results: Sequence[Result]) -> Total:
    verdicts = Counter(result.verdict for result in results)
    return Total(
        wrong=sum(result.wrong for result in results),
        failed=verdicts[Verdict.FAILED],
        missed=verdicts[Verdict.MISSED],
        slow=verdicts[Verdict.SLOW],
        slowest=max((result.whole for result in results), default=0.0),
    )
