"""The retry budget: how many tries beyond the first all requests together may have. Pure.

When everything fails, retries multiply the load on what is left. So each request earns a part of a retry, each retry
spends a whole one, and a small reserve lets single failures be hidden when there is little traffic.
"""

from __future__ import annotations

from typing import Final

RESERVE: Final = 10.0


class RetryBudget:
    """Owned by the event loop. `ratio`: retries that a request earns."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._saved = RESERVE

    def earn(self) -> None:
        """A request came."""
        self._saved = min(RESERVE, self._saved + self._ratio)

    def spend(self) -> bool:
        """Whether one more retry is allowed; it is then taken."""
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
