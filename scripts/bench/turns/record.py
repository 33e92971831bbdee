"""What a run has found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .heard import Heard
from .hits import Growth


class Kind(StrEnum):
    """The configurations. MIXED: two vLLMs without connector; CHUNKED: the same with small steps; SMALL: as PD, with pools and a
    cache of P that cannot hold all conversations.
    """

    MIXED = "mixed"
    CHUNKED = "mixed-chunked"
    PD = "pd"
    SMALL = "pd-small"

    @property
    def mixed(self) -> bool:
        """No connector, no router."""
        return self in (Kind.MIXED, Kind.CHUNKED)


class Arrival(StrEnum):
    CLOSED = "closed"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Run:
    """`heard`: in order of sessions and turns; `first`: the very first request of each URL; `alone`: later ones with nobody
    beside them, as many of each URL, whose number is their session. `cpu`: seconds by process, the client's among them. `left`:
    what tiers and router still held at the end. `noticed`: what went wrong with the processes meanwhile. `round`:
    from 1; runs are compared within theirs.
    """

    kind: Kind
    arrival: Arrival
    heard: tuple[Heard, ...]
    first: tuple[Heard, ...]
    alone: tuple[Heard, ...]
    seconds: float
    cpu: dict[str, float]
    growth: Growth
    left: dict[str, float]
    noticed: tuple[str, ...] = ()
    round: int = 1

    def good(self, answer: int) -> list[Heard]:
        return [one for one in self.heard if not one.wrong(answer)]

    def good_alone(self, answer: int) -> list[Heard]:
        """Of the first URL: the others had as many so that all are as warm."""
        return [one for one in self.alone if one.session == 0 and not one.wrong(answer)]

    def failures(self, answer: int, asked: int) -> list[str]:
        """Empty if every request has its answer."""
        found = [
            f"session {one.session}, turn {one.turn}: {why}"
            for one in (*self.first, *self.alone, *self.heard)
            if (why := one.wrong(answer))
        ]
        if len(self.heard) < asked:
            found.append(f"{asked - len(self.heard)} turns were not asked, because one before them failed")
        return found
