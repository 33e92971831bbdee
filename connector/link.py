"""A link: one engine process attached to the tier, on a thread of its own that alone touches sockets.

    DETACHED ──attach answered──▶ JOINING ──the tier's subscription seen, own topic's welcome here──▶ ATTACHED
        ▲                                                                                                │
        └──────────── joined copies, unmapped ◀── another epoch, or the tier does not know us ◀──────────┘

A silent tier is not a lost one: after 1.2 s without a beat nothing new is sent to it and it is asked who it is; an answer in the
same epoch goes on where it stopped. Other threads hand work in through `post` and never wait for a socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import uvloop
from pegaflow.common.bus.events import INTENTS, EventSubscriber, Step
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.reliable import SendWindow
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.locks import ProcessLock
from pegaflow.common.pool import PoolView
from pegaflow.common.version import package_version
from pegaflow.common.wire.codec import Message, encode_body
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.envelope import EventHeader, PublicationHeader, encode, frames
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages.attach import Ack, Alive, Attach, Attached, Detach, SessionBeat
from pegaflow.common.wire.messages.operate import Ping
from pegaflow.common.wire.version import PROTOCOL
from pegaflow.connector.session import AttachRefused, AttachState, Member, SessionId, TierOptions

ALIVE_S = 0.5
SILENT_S = 1.2
RETRY_S = 0.25
JOIN_S = 2.0
CLOSE_S = 5.0

log = logging.getLogger(__name__)


class Phase(StrEnum):
    DETACHED = "detached"
    JOINING = "joining"
    ATTACHED = "attached"
    LEAVING = "leaving"


class Link:
    """Base of both buses. Subclasses say what `alive` lists, what events do, what a lost session voids.

    Thread rule: methods whose names begin with `_` run on the link's thread unless they say otherwise; the rest may be called
    from anywhere and never block on a socket.
    """

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
        self._gpu = gpu
        self._options, self._member, self._clock = options, member, clock
        self._base, self._fingerprint, self._factors = base, fingerprint, factors
        self._layouts, self._page_bytes = layouts, page_bytes
        self._phase = Phase.DETACHED
        self._changed = threading.Condition()
        self._refused: AttachRefused | None = None
        self._session: SessionId | None = None
        self._suspended = False
        self._posted: deque[Callable[[], None]] = deque()
        self._attached: Attached | None = None
        self._epoch = 0
        self._view: PoolView | None = None
        self._copies = 0
        self._window = SendWindow()
        self._heard_at = 0.0
        self._closing = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"pegaflow-{member.role}-{member.rank}", daemon=True)
        self._thread.start()
        self._ready.wait()

    # --- any thread --------------------------------------------------------------------------------------------------

    def session(self) -> SessionId | None:
        """The session that can be used now; None while there is no tier or it does not answer."""
        return None if self._suspended else self._session

    def wait_attached(self, timeout_s: float) -> AttachState:
        """Waits for the first attach. Raises AttachRefused if the tier refused for good."""
        with self._changed:
            self._changed.wait_for(lambda: self._session is not None or self._refused is not None, timeout_s)
            if self._refused is not None:
                raise self._refused
            return AttachState.ATTACHED if self._session is not None else AttachState.ABSENT

    def post(self, call: Callable[[], None]) -> None:
        """Runs `call` on the link's thread soon; keeps order."""
        self._posted.append(call)
        with suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self._loop.call_soon_threadsafe(self._run_posted)

    def begin_copy(self, session: SessionId) -> PoolView | None:
        """Opens the bracket around any access to the pool. None: that session is over, nothing is open."""
        with self._changed:
            if self._view is None or self._session != session or self._phase is not Phase.ATTACHED:
                return None
            self._copies += 1
            return self._view

    def end_copy(self) -> None:
        with self._changed:
            self._copies -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Leaves the tier: joins copies, unmaps, says goodbye, drops the lock, ends the thread. Idempotent."""
        if not self._thread.is_alive() or self._closing:
            return
        self.post(self._begin_close)
        self._thread.join(CLOSE_S)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._ready.set()
        try:
            self._loop.run_until_complete(self._live())
        except Exception:
            log.exception("pegaflow link ended: this engine goes on without cache")
        finally:
            with self._changed:
                self._session = None
                self._changed.notify_all()
            self._loop.close()

    async def _live(self) -> None:
        self._stop = self._loop.create_future()
        self._factory = SocketFactory()
        self._lock = ProcessLock.acquire(self._options.runtime_dir / "sessions")
        self._rpc = RpcClient(self._factory, self._loop, self._options.endpoint)
        self._events: EventSubscriber | None = None
        self._publisher: Port | None = None
        self._subscribed = False
        self._welcomed = False
        self._repeat: asyncio.TimerHandle | None = None
        self._attaching = False
        self._probing = False
        self._attach()
        alive = self._loop.create_task(self._beat())
        await self._stop
        alive.cancel()
        self._rpc.close()
        self._close_streams()
        self._factory.close()
        self._lock.close()

    def _run_posted(self) -> None:
        while self._posted:
            call = self._posted.popleft()
            try:
                call()
            except Exception:
                log.exception("pegaflow link: a posted call failed")

    def _set(self, phase: Phase) -> None:
        with self._changed:
            self._phase = phase
            attached = self._attached
            live = phase is Phase.ATTACHED and attached is not None
            self._session = SessionId(self._epoch, attached.session) if live and attached is not None else None
            self._changed.notify_all()

    # --- attach ------------------------------------------------------------------------------------------------------

    def _attach(self) -> None:
        if self._closing or self._phase is not Phase.DETACHED or self._attaching:
            return
        member = self._member
        ask = Attach(
            PROTOCOL,
            package_version(),
            member.engine,
            member.role,
            member.rank,
            member.shard,
            member.shards,
            member.stripe,
            member.stripes,
            self._base,
            self._fingerprint,
            [f"{name}={value}" for name, value in sorted(self._factors.items())],
            self._layouts,
            u32s(self._page_bytes),
            self._options.mode,
            os.getpid(),
            self._lock.name,
            self._lock.nonce,
            self._window.oldest,
            self._gpu,
        )
        self._attaching = True
        self._rpc.send(ask, self._options.request_timeout_s, self._attach_answered)

    def _attach_answered(self, answer: Any) -> None:
        self._attaching = False
        if self._closing:
            return
        if not isinstance(answer, Attached):
            error = answer if isinstance(answer, PegaflowError) else PegaflowError(ErrorCode.BAD_MESSAGE, "no Attached")
            self._attach_failed(error)
            return
        self._epoch = self._rpc.peer_epoch
        self._attached = answer
        try:
            self._map(answer)
            self._events = EventSubscriber(self._factory, self._loop, answer.events, self._on_event)
            self._events.subscribe(answer.topic)
            self._publisher = Port(self._factory.xpub(answer.intents), self._loop, self._on_subscription)
        except Exception as error:  # of the mapping, of pinning it, of an endpoint: nothing of it may end the link
            log.warning(
                "pegaflow: cannot use the tier's pool %s or its bus: %s: %s", answer.pool_path, type(error).__name__, error
            )
            self._close_streams()
            self._attached = None
            self._again()
            return
        self._subscribed = self._welcomed = False
        self._set(Phase.JOINING)
        self._later(JOIN_S, self._join_late, answer.session)

    def _again(self) -> None:
        """Attaches anew a little later, once nothing of the pool is mapped."""
        self._later(RETRY_S, self._attach if self._unmap() else self._again)

    def _attach_failed(self, error: PegaflowError) -> None:
        if error.code == ErrorCode.LOCK_NOT_VISIBLE and self._view is None:
            self._lock.close()  # the directory was made anew: a lock that the tier can see needs a new file
            self._lock = ProcessLock.acquire(self._options.runtime_dir / "sessions")
        if not error.retryable:
            log.error("pegaflow: attach refused: %s", error)
            with self._changed:
                self._refused = AttachRefused(error.code, error.text)
                self._changed.notify_all()
            return
        self._later(RETRY_S, self._attach)

    def _map(self, attached: Attached) -> None:
        """Ranks map the pool; the scheduler half does not."""

    def _join_late(self, session: int) -> None:
        if self._phase is Phase.JOINING and self._attached is not None and self._attached.session == session:
            log.warning("pegaflow: attached, but the tier's bus does not answer; trying again")
            self._lose("bus_silent")

    def _joined(self, session: SessionId) -> None:
        """A session has begun."""

    def _on_subscription(self, received: list[bytes]) -> None:
        if received and received[0][:1] == b"\1":
            self._subscribed = True
            self._join()

    def _join(self) -> None:
        if self._phase is Phase.JOINING and self._subscribed and self._welcomed:
            self._heard_at = self._clock()
            self._suspended = False
            self._set(Phase.ATTACHED)
            if self._session is not None:
                self._joined(self._session)
            log.info("pegaflow: %s %d attached to the tier, epoch %016x", self._member.role, self._member.rank, self._epoch)
            self._say_alive()

    # --- events ------------------------------------------------------------------------------------------------------

    def _on_event(self, topic: bytes, header: EventHeader, message: Any, step: Step) -> None:
        if header.epoch != self._epoch:
            self._lose("epoch_changed")
            return
        self._heard_at = self._clock()
        self._suspended = False
        self._take_in(message)
        if not self._welcomed:
            # Last: joining says `alive`, which lists what this process holds of all events seen, and this one counts as seen.
            self._welcomed = True
            self._join()

    def _take_in(self, message: Any) -> None:
        me = self._attached.member if self._attached is not None else 0
        if isinstance(message, Ack):
            if message.member == me:
                self._acked(message.next)
        elif isinstance(message, SessionBeat):
            self._beat_of(len(message.members))
            for member, following in zip(message.members, message.nexts, strict=True):
                if member == me:
                    self._acked(following)
        elif message is not None:
            self._event(message)

    def _beat_of(self, members: int) -> None:
        """A beat of the session, which has so many members."""

    def _event(self, message: Any) -> None:
        """Anything else on the session's topic."""

    def _acked(self, following: int) -> None:
        self._window.ack(following, self._clock())
        self._arm_repeat()

    # --- publications ------------------------------------------------------------------------------------------------

    def _publish(self, message: Message) -> int | None:
        """Numbers and sends; what was accepted before this call is never dropped here."""
        if self._phase is not Phase.ATTACHED:
            return None
        seq = self._window.push(message.KIND, encode_body(message), must=True)
        self._send_due()
        return seq

    def _send_due(self) -> None:
        if self._publisher is None or self._attached is None or self._phase is not Phase.ATTACHED:
            return
        for numbered in self._window.due(self._clock()):
            header = PublicationHeader(self._attached.session, self._attached.member, numbered.seq, self._attached.token)
            self._publisher.send(frames(numbered.kind, numbered.body, header, INTENTS))
        self._arm_repeat()

    def _arm_repeat(self) -> None:
        due = self._window.next_due()
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        if due is not None:
            self._repeat = self._loop.call_later(max(0.001, due - self._clock()), self._send_due)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_S)
            if self._events is not None:
                self._events.poke()
            if self._phase is Phase.ATTACHED:
                if self._clock() - self._heard_at > SILENT_S:
                    self._suspended = True
                    self._who_is_there()
                self._say_alive()

    def _say_alive(self) -> None:
        attached = self._attached
        if attached is None or self._publisher is None or self._events is None:
            return
        header = PublicationHeader(attached.session, attached.member, 0, attached.token)
        self._publisher.send(encode(self._alive(self._events.seen(attached.topic)), header, INTENTS))

    def _alive(self, events_seen: int) -> Alive:
        return Alive(self._epoch, events_seen, 0)

    def _who_is_there(self) -> None:
        if self._probing:
            return
        self._probing = True

        def answered(answer: Any) -> None:
            self._probing = False
            if self._closing or self._phase is not Phase.ATTACHED or isinstance(answer, PegaflowError):
                return
            if self._rpc.peer_epoch != self._epoch:
                self._lose("epoch_changed")

        self._rpc.send(Ping(), self._options.request_timeout_s, answered)

    def _heard_error(self, error: PegaflowError) -> None:
        """A reply that says the session is over."""
        if error.code in (ErrorCode.NOT_ATTACHED, ErrorCode.BAD_TOKEN, ErrorCode.WRONG_EPOCH):
            self._lose(error.code)

    # --- the end of a session ----------------------------------------------------------------------------------------

    def _lose(self, why: str) -> None:
        if self._phase not in (Phase.ATTACHED, Phase.JOINING):
            return
        log.warning("pegaflow: the session with the tier is over (%s); attaching again", why)
        self._set(Phase.LEAVING)
        self._close_streams()
        self._window.discard()  # before the next attach says from which number on the tier must listen
        self._void()
        self._leave_pool()

    def _void(self) -> None:
        """What was promised in the old session is void."""

    def _close_streams(self) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None
        for part in (self._events, self._publisher):
            if part is not None:
                part.close()
        self._events = self._publisher = None

    def _leave_pool(self) -> None:
        """Goes on once no copy of the old session is open: only then the old mapping may go and a new session begin."""
        with self._changed:
            open_copies = self._copies
        if open_copies or not self._unmap():
            self._later(0.01, self._leave_pool)
            return
        self._attached = None
        self._set(Phase.DETACHED)
        if self._closing:
            self._finish_close()
        else:
            self._attach()

    def _unmap(self) -> bool:
        """True: nothing of the pool is mapped any more."""
        if self._view is None:
            return True
        try:
            self._view.close()
        except BufferError:  # a copy's view of the memory is about to go
            return False
        self._view = None
        return True

    def _begin_close(self) -> None:
        if self._closing:
            return
        self._closing = True
        attached = self._attached
        if attached is None:
            self._finish_close()
            return
        self._set(Phase.LEAVING)
        self._close_streams()
        self._void()
        self._goodbye = Detach(attached.session, attached.member, attached.token)
        self._leave_pool()

    def _finish_close(self) -> None:
        goodbye = getattr(self, "_goodbye", None)

        def stop(_: Any) -> None:
            if not self._stop.done():
                self._stop.set_result(None)

        if goodbye is None:
            stop(None)
        else:
            self._rpc.send(goodbye, 0.5, stop)

    def _later(self, pause_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_later(pause_s, call, *arguments)

    def _open_view(self, attached: Attached, writable: bool) -> None:
        self._view = PoolView.open(Path(attached.pool_path), Path(attached.table_path), attached.pool_bytes, writable)
