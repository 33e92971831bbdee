"""A ZeroMQ socket on an asyncio event loop, without `zmq.asyncio`.

The socket's descriptor is edge-triggered: it becomes readable when *anything* about the socket changes, and stays silent until
all of it was looked at. So every wake-up drains, and every send looks for input afterwards. A drain stops after BATCH messages
and goes on in the next turn of the loop, so that timers and other sockets get theirs under load.

PERF: a request costs five frames in and five out, so what pyzmq does per frame in Python (flags as enums, checks of each part) is
a third of the round trip. Hence plain numbers for its constants, and `send` of the socket's C half.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from pegaflow.common.bus.sockets import SocketFactory

BATCH = 256

_NOBLOCK, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_RCVMORE, _EVENTS, _POLLIN = int(zmq.RCVMORE), int(zmq.EVENTS), int(zmq.POLLIN)


class Port:
    """Owns the socket. `on_frames` gets each message; what it raises goes to the loop's exception handler."""

    def __init__(
        self, sock: zmq.Socket[bytes], loop: asyncio.AbstractEventLoop, on_frames: Callable[[list[bytes]], None]
    ) -> None:
        self._sock, self._loop, self._on_frames = sock, loop, on_frames
        self._fd = int(sock.getsockopt(zmq.FD))
        self._recv, self._get, self._send = sock.recv, sock.get, super(zmq.Socket, sock).send
        self._first: Callable[[int], bytes] = sock.recv
        self._scheduled = False
        self._draining = False
        self._closed = False
        self.dropped = 0
        loop.add_reader(self._fd, self._drain)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_drain)

    def _scheduled_drain(self) -> None:
        self._scheduled = False
        self._drain()

    def _drain(self) -> None:
        first, recv, get = self._first, self._recv, self._get
        self._draining = True
        try:
            for taken in range(BATCH):
                if self._closed:
                    return
                # To ask is the cheapest end after the one message that mostly comes; in a flood, to catch is.
                if taken == 1 and not self._has_input():
                    return
                try:
                    frames = [first(_NOBLOCK)]
                except zmq.Again:
                    return
                while get(_RCVMORE):
                    frames.append(recv(_NOBLOCK))
                try:
                    self._on_frames(frames)
                except Exception as error:  # one bad message must not end the socket
                    self._loop.call_exception_handler({"message": "message handler failed", "exception": error})
        finally:
            self._draining = False
        self._schedule()

    def _has_input(self) -> bool:
        """Takes the descriptor's edge if there is none."""
        return bool(int(self._get(_EVENTS)) & _POLLIN)

    def send(self, frames: list[bytes]) -> bool:
        """Sends without blocking. False: dropped (queue full or peer gone), and counted."""
        if self._closed:
            return False
        send = self._send
        try:
            for frame in frames[:-1]:
                send(frame, _MORE)
            send(frames[-1], _NOBLOCK)
            sent = True
        except zmq.ZMQError:  # EAGAIN: queue full; EHOSTUNREACH: a ROUTER's peer has gone
            self.dropped += 1
            sent = False
        if not self._draining and self._has_input():  # a drain looks by itself
            self._schedule()
        return sent

    def bind(self, factory: SocketFactory, endpoint: str) -> str:
        """One more endpoint for a bound socket."""
        return factory.bind(self._sock, endpoint)

    def subscribe(self, topic: bytes) -> None:
        """For SUB sockets."""
        self._sock.setsockopt(zmq.SUBSCRIBE, topic)
        self._schedule()

    def unsubscribe(self, topic: bytes) -> None:
        self._sock.setsockopt(zmq.UNSUBSCRIBE, topic)
        self._schedule()

    def poke(self) -> None:
        """Looks at the socket once: a SUB sends its subscriptions to a reconnected peer only when it is touched."""
        self._schedule()

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)
            self._sock.close(linger=0)


class KeyedPort(Port):
    """A port on which peers may come in with keys. `sender`: the key, in hex, under which the message being handled came; empty
    where its connection has none (ipc). libzmq says so of each message; nothing in the message itself can."""

    def __init__(
        self, sock: zmq.Socket[bytes], loop: asyncio.AbstractEventLoop, on_frames: Callable[[list[bytes]], None]
    ) -> None:
        super().__init__(sock, loop, on_frames)
        self.sender = ""
        self._first = self._first_with_key

    def _first_with_key(self, flags: int) -> bytes:
        frame = self._sock.recv(flags, copy=False)
        try:
            self.sender = str(frame.get("User-Id"))
        except zmq.ZMQError:
            self.sender = ""
        return frame.bytes
