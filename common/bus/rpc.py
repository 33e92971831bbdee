"""Request and reply: correlation, deadline, epoch.

A request names the budget that is left (ms) and the epoch it is meant for (0: any). It is never retried here: what may be
repeated, its caller knows. Deadlines live on the pending request; no receive is ever cancelled (that loses messages).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pegaflow.common import logs
from pegaflow.common.bus.endpoint import parse_endpoint, without_key
from pegaflow.common.bus.port import KeyedPort, Port
from pegaflow.common.bus.roles import Identity, false_claim, may_ask
from pegaflow.common.bus.sockets import MAX_MESSAGE_BYTES, SocketFactory
from pegaflow.common.wire.codec import Message, is_known
from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError, WireError
from pegaflow.common.wire.messages.operate import Error

_MAX_BUDGET_MS = 3_600_000

log = logs.get(__name__)


def too_large(frames: list[bytes]) -> bool:
    """A peer ends the connection over a frame above its limit, so nobody may send one."""
    return max(map(len, frames)) > MAX_MESSAGE_BYTES


@dataclass(slots=True)
class Request:
    """One request as the server sees it. Answer exactly once with `reply` or `fail`; a second answer is a `ValueError`."""

    server: RpcServer
    route: list[bytes]
    correlation: int
    deadline: float
    message: Any
    answered: bool = field(default=False)

    def reply(self, message: Message) -> bool:
        """False: the asker has gone."""
        if self.answered:
            raise ValueError(f"{self.message.KIND} answered twice")
        self.answered = True
        header = ReplyHeader(self.correlation, self.server.epoch)
        frames = encode(message, header)
        if too_large(frames):  # the asker's socket would hang up on it, and all its other requests with it
            text = f"the {message.KIND} has more than {MAX_MESSAGE_BYTES} bytes"
            frames = encode(Error(ErrorCode.TOO_LARGE, text, False), header)
        return self.server.port.send([*self.route, *frames])

    def fail(self, code: ErrorCode | str, text: str) -> bool:
        error = RemoteError(code, text)
        return self.reply(Error(error.code, text, error.retryable))


class RpcServer:
    """A ROUTER. `handle` gets each request that decodes and that its sender may send; the rest is answered or counted here.

    `forbidden`: requests of a sender whose key does not allow them, or does not bear out what they say of him.
    """

    def __init__(
        self,
        factory: SocketFactory,
        loop: asyncio.AbstractEventLoop,
        endpoint: str,
        epoch: int,
        handle: Callable[[Request], None],
        clock: Callable[[], float],
    ) -> None:
        self.epoch = epoch
        self._factory, self._handle, self._clock = factory, handle, clock
        self.malformed = self.forbidden = 0
        sock, self.endpoint = factory.router(endpoint)
        # PERF: only where keys are in use is each message asked under which it came.
        self.port = (KeyedPort if factory.ring is not None else Port)(sock, loop, self._on_frames)

    def bind(self, endpoint: str) -> str:
        """Listens on one more endpoint; returns it with its real port."""
        return self.port.bind(self._factory, endpoint)

    def _on_frames(self, frames: list[bytes]) -> None:
        route, rest = frames[:1], frames[1:]
        try:
            envelope = open_envelope(rest, RequestHeader)
        except WireError as error:
            self.malformed += 1
            # The correlation cannot be trusted; 0 tells the asker (and a person with a tap) what went wrong.
            self.port.send([*route, *encode(Error(error.code, error.text, False), ReplyHeader(0, self.epoch))])
            return
        header: RequestHeader = envelope.header
        budget_s = min(header.budget_ms, _MAX_BUDGET_MS) / 1e3
        request = Request(self, route, header.correlation, self._clock() + budget_s, None)
        sender: Identity | None = None
        if isinstance(self.port, KeyedPort) and self.port.sender:
            sender = self._allowed(self.port.sender, envelope.kind, request)
            if sender is None:
                return
        try:
            request.message = envelope.message()
        except WireError as error:
            self.malformed += error.code != ErrorCode.UNSUPPORTED
            request.fail(error.code, error.text)
            return
        if sender is not None and (wrong := false_claim(sender, request.message)):
            self._forbid(request, envelope.kind, sender.key, wrong)
            return
        if header.epoch not in (0, self.epoch):
            request.fail(ErrorCode.WRONG_EPOCH, f"meant for epoch {header.epoch:016x}, this is {self.epoch:016x}")
            return
        try:
            self._handle(request)
        except Exception as error:
            if not request.answered:
                request.fail(ErrorCode.INTERNAL, f"{type(error).__name__} while handling {request.message.KIND}")
            raise

    def _allowed(self, key: str, kind: str, request: Request) -> Identity | None:
        """Who sent it; None: he may not, and was told so."""
        ring = self._factory.ring
        assert ring is not None
        who = ring.identity(key)  # asked anew for each message: a key that is struck off may ask nothing more
        if who is None:
            self._forbid(request, kind, key, "this key is not listed any more")
        elif is_known(kind) and not may_ask(ring.service, who.role, kind):
            self._forbid(request, kind, key, f"a {who.role} may not send {kind} to a {ring.service}")
        else:
            return who
        return None

    def _forbid(self, request: Request, kind: str, key: str, why: str) -> None:
        self.forbidden += 1
        if self.forbidden & (self.forbidden - 1) == 0:  # each doubling: who asks again and again does not fill the log
            log.warning("forbidden", request=kind[:64], key=key, text=why, count=self.forbidden)
        request.fail(ErrorCode.FORBIDDEN, why)

    def close(self) -> None:
        self.port.close()


OnReply = Callable[[Any], None]


@dataclass(slots=True)
class _Pending:
    on_reply: OnReply
    timer: asyncio.TimerHandle
    sent_at: float


class RpcClient:
    """A DEALER to one endpoint. Not thread-safe: use it on its loop only.

    When a deadline passes and the peer was silent since the request was sent, the socket is replaced: that drops the requests
    that queued for a dead peer, which the next life must not receive. No answer can come to the old socket any more, so every
    other request that is pending ends then, too.
    """

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoint: str) -> None:
        self._factory, self._loop, self.endpoint = factory, loop, endpoint
        self._place = without_key(endpoint)
        # Nothing tells a refused handshake from a dead peer on this side, and a person wonders.
        self._doubt = " (does it list our key, and is the key behind # its own?)" if parse_endpoint(endpoint).key else ""
        self._pending: dict[int, _Pending] = {}
        self._correlations = itertools.count(1)
        self._heard_at = 0.0
        self.peer_epoch = 0
        self._port = Port(factory.dealer(endpoint), loop, self._on_frames)

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def heard_at(self) -> float:
        """When the peer last answered anything, on the loop's clock."""
        return self._heard_at

    def send(self, message: Message, budget_s: float, on_reply: OnReply, epoch: int = 0) -> None:
        """Sends; `on_reply` gets the typed reply or a `RemoteError`, exactly once, never from inside this call."""
        correlation = next(self._correlations)
        budget_s = max(budget_s, 0.001)
        frames = encode(message, RequestHeader(correlation, int(budget_s * 1e3), epoch))
        timer = self._loop.call_later(budget_s, self._expire, correlation)
        self._pending[correlation] = _Pending(on_reply, timer, self._loop.time())
        if too_large(frames):
            self._loop.call_soon(self._end, correlation, LocalError(ErrorCode.TOO_LARGE, f"{message.KIND} is too large to send"))
        elif not self._port.send(frames):
            self._loop.call_soon(self._end, correlation, RemoteError(ErrorCode.UNREACHABLE, f"{self._place}: send queue is full"))

    async def request(self, message: Message, budget_s: float, epoch: int = 0) -> Any:
        """Sends and waits. Raises `RemoteError`."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(reply: Any) -> None:
            if future.done():
                return
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.send(message, budget_s, done, epoch)
        return await future

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            envelope = open_envelope(frames, ReplyHeader)
        except WireError:
            return  # nothing says whose reply this was; its deadline speaks for it
        header: ReplyHeader = envelope.header
        self._heard_at = self._loop.time()
        self.peer_epoch = header.epoch
        if header.correlation not in self._pending:
            return  # late: its deadline has passed
        reply: Any
        try:
            reply = envelope.message()
        except WireError as error:
            reply = error
        if isinstance(reply, Error):
            reply = RemoteError(reply.code, reply.text)
        self._end(header.correlation, reply)

    def _expire(self, correlation: int) -> None:
        pending = self._pending.get(correlation)
        if pending is None:
            return
        if self._heard_at < pending.sent_at:
            self._port.close()
            self._port = Port(self._factory.dealer(self.endpoint), self._loop, self._on_frames)
            dropped = [other for other in self._pending if other != correlation]
        else:
            dropped = []
        self._end(correlation, RemoteError(ErrorCode.DEADLINE, f"no answer from {self._place} in time{self._doubt}"))
        for other in dropped:
            self._end(other, RemoteError(ErrorCode.UNREACHABLE, f"{self._place} is silent"))

    def _end(self, correlation: int, reply: Any) -> None:
        pending = self._pending.pop(correlation, None)
        if pending is not None:
            pending.timer.cancel()
            pending.on_reply(reply)

    def close(self) -> None:
        """Ends every pending request with `unreachable`."""
        for correlation in list(self._pending):
            self._end(correlation, RemoteError(ErrorCode.UNREACHABLE, f"{self._place}: closed"))
        self._port.close()
