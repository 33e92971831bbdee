"""A silent tier is not a lost one: nothing new is sent to it, and it is asked who it is until it speaks again.

All methods run on the link's thread; `suspended` may be read from anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Ping

SILENT_S = 1.2
STOOD_S = 1.0
"""Between two looks, two a second: a link that looks so late stood still itself; what it was told is still unread."""


class Silence:
    """`another`: called with nothing when somebody answers who is not the life of the tier that we were attached to."""

    def __init__(self, rpc: RpcClient, timeout_s: float, clock: Callable[[], float], another: Callable[[], None]) -> None:
        self._rpc, self._timeout_s, self._clock, self._another = rpc, timeout_s, clock, another
        self._heard_at = self._looked_at = 0.0
        self.asking = False
        self.suspended = False

    def heard(self) -> None:
        self._heard_at = self._clock()
        self.suspended = False

    def look(self, epoch: int) -> None:
        """With every beat of ours: has the tier of this epoch been silent for too long?"""
        now = self._clock()
        stood, self._looked_at = now - self._looked_at > STOOD_S, now
        if stood or now - self._heard_at <= SILENT_S:
            return
        self.suspended = True
        if self.asking:
            return
        self.asking = True

        def answered(answer: Any) -> None:
            self.asking = False
            if not isinstance(answer, PegaflowError) and self._rpc.peer_epoch != epoch:
                self._another()

        self._rpc.send(Ping(), self._timeout_s, answered)
