"""A ZeroMQ socket on an asyncio event loop, without `zmq.asyncio`.

The socket's descriptor is edge-triggered: it becomes readable when *anything* about the socket changes, and stays silent until
all of it was looked at. So every wake-up drains, and every send looks for input afterwards. A drain stops after BATCH messages
and goes on in the next turn of the loop, so that timers and other sockets get theirs under load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq
from pegaflow.common.bus.sockets import SocketFactory

BATCH = 256


class Port:
    """Owns the socket. `on_frames` gets each message; what it raises goes to the loop's exception handler."""

    def __init__(
        self, sock: zmq.Socket[bytes], loop: asyncio.AbstractEventLoop, on_frames: Callable[[list[bytes]], None]
    ) -> None:
        self._sock, self._loop, self._on_frames = sock, loop, on_frames
        self._fd = int(sock.getsockopt(zmq.FD))
        self._scheduled = False
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
        for _ in range(BATCH):
            if self._closed:
                return
            try:
                frames = self._sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._on_frames(frames)
            except Exception as error:  # one bad message must not end the socket
                self._loop.call_exception_handler({"message": "message handler failed", "exception": error})
        self._schedule()

    def send(self, frames: list[bytes]) -> bool:
        """Sends without blocking. False: dropped (queue full or peer gone), and counted."""
        if self._closed:
            return False
        try:
            self._sock.send_multipart(frames, zmq.NOBLOCK)
            sent = True
        except zmq.ZMQError:  # EAGAIN: queue full; EHOSTUNREACH: a ROUTER's peer has gone
            self.dropped += 1
            sent = False
        if int(self._sock.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
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
