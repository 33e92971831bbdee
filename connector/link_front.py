"""What other threads see of a link: where it stands with the tier, the brackets around the pool, and its end."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum

from pegaflow.common.pool import PoolView
from pegaflow.common.wire.messages.attach import Attached, Detach
from pegaflow.connector.attacher import Identity
from pegaflow.connector.loop_thread import LoopThread
from pegaflow.connector.mapped_pool import MappedPool
from pegaflow.connector.outbox import Outbox
from pegaflow.connector.session import AttachRefused, AttachState, Member, SessionId, TierOptions
from pegaflow.connector.silence import Silence

CLOSE_S = 5.0

log = logging.getLogger(__name__)


class Phase(StrEnum):
    DETACHED = "detached"
    JOINING = "joining"
    ATTACHED = "attached"
    LEAVING = "leaving"


class LinkFront(ABC):
    """Owns the thread, the standing and the mapping. `_changed` guards what both sides read."""

    _silence: Silence

    def __init__(
        self,
        options: TierOptions,
        member: Member,
        base: bytes,
        fingerprint: bytes,
        factors: dict[str, str],
        layouts: bytes,
        page_bytes: list[int],
        clock: Callable[[], float],
        gpu: bool = False,
    ) -> None:
        self._options, self._member, self._clock = options, member, clock
        self._identity = Identity(member, base, fingerprint, factors, layouts, page_bytes, gpu)
        self._phase = Phase.DETACHED
        self._changed = threading.Condition()
        self._refused: AttachRefused | None = None
        self._session: SessionId | None = None
        self._attached: Attached | None = None
        self._epoch = 0
        self._pool = MappedPool(self._changed)
        self._closing = False
        self._goodbye: Detach | None = None
        self._thread = LoopThread(f"pegaflow-{member.role}-{member.rank}", self._live, self._ended)
        self._loop, self.post = self._thread.loop, self._thread.post
        self._outbox = Outbox(self._loop, clock)
        self._thread.start()

    @abstractmethod
    async def _live(self) -> None:
        """The thread's life: attaches, and ends when `_begin_close` has led to that."""

    @abstractmethod
    def _begin_close(self) -> None:
        """On the link's thread."""

    def session(self) -> SessionId | None:
        """The session that can be used now; None while there is no tier or it does not answer."""
        session = self._session
        return None if session is None or self._silence.suspended else session

    def wait_attached(self, timeout_s: float) -> AttachState:
        """Waits for the first attach. Raises AttachRefused if the tier refused for good."""
        with self._changed:
            self._changed.wait_for(lambda: self._session is not None or self._refused is not None, timeout_s)
            if self._refused is not None:
                raise self._refused
            return AttachState.ATTACHED if self._session is not None else AttachState.ABSENT

    def begin_copy(self, session: SessionId) -> PoolView | None:
        """Opens the bracket around any access to the pool. None: that session is over, nothing is open."""
        with self._changed:
            if self._session != session or self._phase is not Phase.ATTACHED:
                return None
            return self._pool.begin()

    def end_copy(self) -> None:
        self._pool.end()

    def close(self) -> None:
        """Leaves the tier: joins copies, unmaps, says goodbye, drops the lock, ends the thread. Idempotent."""
        if self._thread.alive:
            self.post(self._begin_close)
            if not self._thread.join(CLOSE_S):
                log.error("pegaflow: the link did not end within %.0f s; its thread is left behind", CLOSE_S)

    # The thread.

    def _ended(self) -> None:
        with self._changed:
            self._session = None
            self._changed.notify_all()

    def _set(self, phase: Phase) -> None:
        with self._changed:
            self._phase = phase
            attached = self._attached
            live = phase is Phase.ATTACHED and attached is not None
            self._session = SessionId(self._epoch, attached.session) if live and attached is not None else None
            self._changed.notify_all()
