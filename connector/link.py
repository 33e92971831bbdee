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
from typing import Any

from pegaflow.common import faults
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.fault_points import Point
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.envelope import EventHeader
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages.attach import Ack, Alive, Attached, Detach, SessionBeat
from pegaflow.connector.attacher import RETRY_S, Attacher
from pegaflow.connector.keys import engine_keyring
from pegaflow.connector.link_front import LinkFront, Phase
from pegaflow.connector.session import AttachRefused, SessionId
from pegaflow.connector.silence import Silence
from pegaflow.connector.streams import Streams

ALIVE_S = 0.5
JOIN_S = 2.0
LEAVE_S = 0.01
PART_S = 1.0
"""At the end of the process: how long at most the tier may take to have heard what was published; what it has not, is void."""

log = logging.getLogger(__name__)


class Link(LinkFront):
    """Base of both buses. Subclasses say what `alive` lists, what events do, what a lost session voids.

    Thread rule: methods whose names begin with `_` run on the link's thread unless they say otherwise; the rest may be called
    from anywhere and never block on a socket.
    """

    # The thread.

    async def _live(self) -> None:
        self._stop = self._loop.create_future()
        self._factory = SocketFactory(engine_keyring(self._options.curve_key_file))
        self._rpc = RpcClient(self._factory, self._loop, self._options.endpoint)
        self._attacher = Attacher(
            self._loop,
            self._rpc,
            self._options,
            self._identity,
            first_seq=lambda: self._outbox.window.oldest,
            mapped=lambda: self._pool.view is not None,
            attached=self._attach_answered,
            refused=self._attach_refused,
        )
        self._silence = Silence(self._rpc, self._options.request_timeout_s, self._clock, self._another_life)
        self._streams = Streams(self._factory, self._loop, self._outbox, self._on_event, self._join)
        self._attach()
        alive = self._loop.create_task(self._beat())
        await self._stop
        alive.cancel()
        self._rpc.close()
        self._streams.close()
        self._factory.close()
        self._attacher.close()

    # Attach.

    def _attach(self) -> None:
        if not self._closing and self._phase is Phase.DETACHED:
            self._attacher.ask()

    def _attach_answered(self, answer: Attached) -> None:
        if self._closing:
            return
        self._epoch = self._rpc.peer_epoch
        self._attached = answer
        try:
            faults.reach(Point.CONNECTOR_ATTACHED_BEFORE_APPLIED)
            self._map(answer)
            faults.reach(Point.CONNECTOR_POOL_AFTER_MAPPED)
            self._streams.open(answer)
        except Exception as error:  # of the mapping, of pinning it, of an endpoint: nothing of it may end the link
            log.warning(
                "pegaflow: cannot use the tier's pool %s or its bus: %s: %s", answer.pool_path, type(error).__name__, error
            )
            self._streams.close()
            self._attached = None
            self._again()
            return
        self._set(Phase.JOINING)
        self._loop.call_later(JOIN_S, self._join_late, answer.session)

    def _again(self) -> None:
        """Attaches anew a little later, once nothing of the pool is mapped."""
        self._loop.call_later(RETRY_S, self._attach if self._unmap() else self._again)

    def _attach_refused(self, error: PegaflowError) -> None:
        with self._changed:
            self._refused = AttachRefused(error.code, error.text)
            self._changed.notify_all()

    def _map(self, attached: Attached) -> None:
        """Ranks map the pool; the scheduler half does not."""

    def _join_late(self, session: int) -> None:
        if self._phase is Phase.JOINING and self._attached is not None and self._attached.session == session:
            log.warning("pegaflow: attached, but the tier's bus does not answer; trying again")
            self._lose("bus_silent")

    def _joined(self, session: SessionId) -> None:
        """A session has begun."""

    def _join(self) -> None:
        if self._phase is not Phase.JOINING:
            return
        self._silence.heard()
        self._set(Phase.ATTACHED)
        if self._session is not None:
            self._joined(self._session)
        log.info("pegaflow: %s %d attached to the tier, epoch %016x", self._member.role, self._member.rank, self._epoch)
        faults.reach(Point.CONNECTOR_JOIN_AFTER_APPLIED)
        self._say_alive()

    # Events.

    def _on_event(self, header: EventHeader, message: Any) -> None:
        if header.epoch != self._epoch:
            self._lose("epoch_changed")
            return
        self._silence.heard()
        self._take_in(message)

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
        faults.reach(Point.CONNECTOR_ACK_BEFORE_APPLIED)
        self._outbox.acked(following)

    # Publications.

    def _publish(self, message: Message) -> int | None:
        """Numbers and sends. None: there is no session, so it was not accepted."""
        return self._outbox.publish(message) if self._phase is Phase.ATTACHED else None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_S)
            try:
                self._streams.poke()
                if self._phase is Phase.ATTACHED:
                    self._silence.look(self._epoch)
                    self._say_alive()
            except Exception:  # a process that beats no more would lose its session for good
                log.exception("pegaflow link: a beat failed")

    def _say_alive(self) -> None:
        if self._attached is not None:
            faults.reach(Point.CONNECTOR_ALIVE_BEFORE_SENT)
            self._outbox.say(self._alive(self._streams.seen))

    def _alive(self, events_seen: int) -> Alive:
        return Alive(self._epoch, events_seen, 0)

    def _another_life(self) -> None:
        if not self._closing and self._phase is Phase.ATTACHED:
            self._lose("epoch_changed")

    def _heard_error(self, error: PegaflowError) -> None:
        """A reply that says the session is over."""
        if error.code in (ErrorCode.NOT_ATTACHED, ErrorCode.BAD_TOKEN, ErrorCode.WRONG_EPOCH):
            self._lose(error.code)

    # The end of a session.

    def _lose(self, why: str) -> None:
        if self._phase not in (Phase.ATTACHED, Phase.JOINING):
            return
        log.warning("pegaflow: the session with the tier is over (%s); attaching again", why)
        self._set(Phase.LEAVING)
        self._streams.close()
        self._outbox.window.discard()  # before the next attach says from which number on the tier must listen
        self._void()
        self._leave_pool()

    def _void(self) -> None:
        """What was promised in the old session is void."""

    def _leave_pool(self) -> None:
        """Goes on once no copy of the old session is open: only then the old mapping may go and a new session begin."""
        left = False
        try:
            if not self._pool.copying:
                faults.reach(Point.CONNECTOR_SESSION_BEFORE_UNMAP)
                left = self._unmap()
                faults.reach(Point.CONNECTOR_SESSION_AFTER_UNMAP)
        except Exception:  # whatever it is: no new session before the old mapping has gone
            left = False
            log.exception("pegaflow link: the old pool is not unmapped")
        if not left:
            self._loop.call_later(LEAVE_S, self._leave_pool)
            return
        self._attached = None
        self._set(Phase.DETACHED)
        if self._closing:
            self._finish_close()
        else:
            self._attach()

    def _unmap(self) -> bool:
        return self._pool.unmap()

    def _begin_close(self) -> None:
        if not self._closing:
            self._closing = True
            self._part(self._clock() + PART_S)

    def _part(self, at_most: float) -> None:
        """Goes once the last words are heard: the goodbye comes by another socket, and pages that were written end with it."""
        if self._phase is Phase.LEAVING:
            return  # the session ended by itself, and with it this link
        heard = self._phase is not Phase.ATTACHED or not self._outbox.window or self._silence.suspended
        if not heard and self._clock() < at_most:
            self._loop.call_later(LEAVE_S, self._part, at_most)
            return
        if (attached := self._attached) is not None:
            self._goodbye = Detach(attached.session, attached.member, attached.token)
        self._set(Phase.LEAVING)
        self._streams.close()
        self._void()
        self._leave_pool()

    def _finish_close(self) -> None:
        if self._goodbye is None:
            self._end(None)
            return
        try:
            faults.reach(Point.CONNECTOR_DETACH_BEFORE_SENT)
            self._rpc.send(self._goodbye, 0.5, self._end)
        except Exception:  # the lock goes all the same, and tells the tier
            log.exception("pegaflow link: no goodbye")
            self._end(None)

    def _end(self, answer: Any) -> None:
        self._stop.set_result(None)
