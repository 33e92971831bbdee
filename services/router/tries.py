"""How often a request is tried, and how long it pauses before each try. Pure.

Pauses grow, and each is drawn from the upper half of what it may be: requests that failed together do not come back
together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

PAUSE_SECONDS: Final = 0.1
PAUSE_LIMIT_SECONDS: Final = 2.0


class Tries:
    """Of one request. `retries`: tries after the first. `draw` gives numbers of [0, 1)."""

    def __init__(self, retries: int, draw: Callable[[], float]) -> None:
        self._retries = retries
        self._draw = draw
        self._begun = 0  # flows begun again
        self._resumed = 0  # engines asked to go on, in a row, since the client got something

    def again(self) -> float | None:
        """Seconds to wait before the whole flow is begun again; None: no more."""
        if self._begun >= self._retries:
            return None
        self._begun += 1
        return self._pause(self._begun)

    def resume(self) -> float | None:
        """Seconds to wait before another engine goes on with a stream; None: no more. The first waits for nothing."""
        if self._resumed > self._retries:
            return None
        self._resumed += 1
        return self._pause(self._resumed - 1) if self._resumed > 1 else 0.0

    def progress(self) -> None:
        """The client got something."""
        self._resumed = 0

    def validate(self) -> None:
        """Raises AssertionError; called by tests."""
        assert 0 <= self._begun <= self._retries
        assert 0 <= self._resumed <= self._retries + 1

    def _pause(self, attempt: int) -> float:
        longest = min(PAUSE_LIMIT_SECONDS, PAUSE_SECONDS * float(2 ** (attempt - 1)))
        return longest * (1 + self._draw()) / 2
