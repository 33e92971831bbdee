"""A breaker per engine: one that fails again and again gets a pause, then one request as a trial. Pure.

    closed ──failures in a row──▶ open ──pause over──▶ half open ──trial good──▶ closed
                                   ▲                      │
                                   └──── longer pause ◀───┘ trial bad

Health checks see an engine that is down; a breaker sees one that answers them and fails every request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pegaflow.services.router.steps import Verdict

LONGEST = 8
"""The longest pause, in first pauses."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`failures` in a row open it, 0: never; `pause` in seconds."""

    failures: int = 5
    pause: float = 5.0


class Breaker:
    """Of one engine. `now` in seconds of any clock that only rises."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._failures = 0
        self._opened = 0  # times in a row
        self._until = 0.0
        self._trial = False

    def state(self, now: float) -> BreakerState:
        if not self._opened:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether the engine may be picked."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._trial)

    def picked(self) -> None:
        """The engine got a request; the one of a half-open breaker is its trial."""
        self._trial = bool(self._opened)

    def record(self, verdict: Verdict, now: float) -> None:
        """What a request showed. Requests from before it opened may still end: their failures change nothing."""
        was_open = self.state(now) is BreakerState.OPEN
        if verdict is Verdict.GOOD:
            self._failures, self._opened, self._trial = 0, 0, False
        elif verdict is Verdict.NOTHING:
            self._trial = False
        elif self._settings.failures and not was_open:
            self._failures += 1
            self._trial = False
            if self._opened or self._failures >= self._settings.failures:
                self._until = now + self._settings.pause * min(2**self._opened, LONGEST)
                self._opened += 1

    def reset(self) -> None:
        """What comes back may be another process: nothing is held against it."""
        self._failures, self._opened, self._trial = 0, 0, False
