"""What is done to whom while a request is where, and what its client may see then."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from deployment.supervision import SERVICES
from deployment.traffic import Seen


class Phase(StrEnum):
    """Where a request is. Each but the last stands still there because one process is stopped that its next step needs."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    FIRST_TOKEN = "first token out"
    FETCHING = "fetching"
    LOADING = "loading"
    DECODING = "decoding"


class How(StrEnum):
    KILL = "kill"
    STOP = "stop"
    RESTART = "restart"


ENGINES: Final = ("vllm-p", "vllm-d")


class Scenario(NamedTuple):
    phase: Phase
    victim: str
    how: How

    def __str__(self) -> str:
        return f"{self.how} {self.victim}, {self.phase}"

    @property
    def name(self) -> str:
        """One word, for options."""
        return f"{self.phase}:{self.victim}:{self.how}".replace(" ", "-")


ALL: Final = tuple(Scenario(phase, victim, how) for victim in SERVICES for how in How for phase in Phase)


def allowed(scenario: Scenario) -> frozenset[Seen]:
    """What the client of the request that was caught there may see; RIGHT always, WRONG never.

    Trouble in tiers and metaserver fails no request, and nothing does that only stands still for a while or drains. There is one
    P and one D, so that nobody can take over from a dead one: a P that has answered is no longer needed; the client's first byte
    waits for D's first token, so that a D that dies before it is an error status, and after it an error inside the stream. A D
    that is told to end may still say something before it does.
    """
    phase, victim, how = scenario
    seen = {Seen.RIGHT}
    early = phase in (Phase.QUEUED, Phase.PREFILLING)
    if victim == "router" and how is How.KILL:
        seen.add(Seen.NO_ANSWER)
    if victim in ENGINES and how is not How.STOP:
        if victim == "vllm-p" and early:
            seen.add(Seen.REFUSED)
        if victim == "vllm-d":
            if phase is not Phase.DECODING:
                seen.add(Seen.REFUSED)
            if phase is Phase.DECODING or how is How.RESTART:
                seen.add(Seen.BROKEN)
    return frozenset(seen)


def allowed_beside(scenario: Scenario) -> frozenset[Seen]:
    """What clients beside it may see: what any phase allows, for nobody knows theirs. A router that ends says so first."""
    _, victim, how = scenario
    seen = {Seen.LEFT}.union(*(allowed(Scenario(phase, victim, how)) for phase in Phase))
    if victim == "router" and how is How.RESTART:
        seen |= {Seen.REFUSED, Seen.NO_ANSWER}
    return frozenset(seen)
