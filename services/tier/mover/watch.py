"""Does the mover still read its commands? One that spins or stands still serves nobody, and nothing else would show it.

An owner needs this: a reader gives up a READ that does not end, but the owner itself hears nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from pegaflow.common import clock
from pegaflow.services.tier.mover.child import Mover
from pegaflow.services.tier.mover.wire import Ping

WATCH: Final = 0
"""The number of its pings; others count from 1."""
# When our own loop was held up for longer than this, an answer may lie unread: the round counts for nothing.
_LATE_S: Final = 1.0


class Watch:
    """Asks each mover once in `every_s`; who has not answered by the next round is hung."""

    def __init__(self, every_s: float, movers: Callable[[], Iterable[Mover]], hung: Callable[[Mover], None]) -> None:
        """`movers`: those that are ready now. `hung` is told at every round until the mover is gone or answers."""
        self._every_s, self._movers, self._hung = every_s, movers, hung
        self._asked: set[Mover] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """The first round; needs a running loop."""
        self._ask()

    def _ask(self) -> None:
        for mover in self._movers():
            if mover not in self._asked:
                self._asked.add(mover)
                mover.send(Ping(WATCH))
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look, clock.now() + self._every_s)

    def _look(self, due: float) -> None:
        if clock.now() - due < _LATE_S:
            for mover in list(self._asked):
                self._hung(mover)
        self._ask()

    def answered(self, mover: Mover) -> None:
        """It answered a ping, or it is gone."""
        self._asked.discard(mover)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
