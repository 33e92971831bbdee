"""One try to get in at an endpoint, watched: does a socket greet there, and does its handshake with us come to its end?"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import zmq
from pegaflow.common.bus.endpoint import parse_endpoint
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.sockets import HANDSHAKE_MS, SocketFactory
from pegaflow.services.cli.access import Access, Seen, judged
from pegaflow.services.reach import mechanism, reach

_EVENT = struct.Struct("=HI")
_CUT_S = HANDSHAKE_MS / 2e3
"""Later than that a handshake ended by its timeout, and nobody has ended it."""


class Knock:
    """Begins at once, and goes on until it is closed. Owns its sockets. Raises `LocalError` with `bad_endpoint`.

    `kind`: of our socket, zmq.SUB where the other side publishes: whoever is asked may let others in than whoever is heard.
    `on_change`: something was seen; it is no call for closing this.
    """

    def __init__(
        self,
        factory: SocketFactory,
        loop: asyncio.AbstractEventLoop,
        endpoint: str,
        wait_s: float,
        kind: int = zmq.DEALER,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop, self._seen, self._on_change = loop, Seen(), on_change
        self._has_key = bool(parse_endpoint(endpoint).key)
        self._connected_at: float | None = None
        self._sock, watch = factory.watched(kind, endpoint)
        self._watch = Port(watch, loop, self._happened)
        self._reach = loop.create_task(self._reached(endpoint, wait_s))

    async def _reached(self, endpoint: str, wait_s: float) -> None:
        found = await reach([endpoint], wait_s)
        if found.codes[0] == "" and parse_endpoint(endpoint).is_tcp:
            self._seen.speaks = await mechanism(endpoint, wait_s)
        self._seen.reached, self._seen.greeted_s = found.codes[0], found.micros[0] / 1e6
        self._on_change()

    def _happened(self, frames: list[bytes]) -> None:
        event, _ = _EVENT.unpack(frames[0])
        match event:
            case zmq.EVENT_CONNECTED:
                self._connected_at = self._loop.time()
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._seen.let_in = True
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._seen.refused = True
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._seen.cuts += self._held_s() < _CUT_S
                self._connected_at = None
        self._on_change()

    def _held_s(self) -> float:
        return 0.0 if self._connected_at is None else self._loop.time() - self._connected_at

    @property
    def let_in(self) -> bool:
        return self._seen.let_in

    def proven(self) -> Access | None:
        """What will not be otherwise if one waits."""
        return judged(self._seen, self._has_key, 0.0)

    def verdict(self) -> Access | None:
        """What can be said by now, that nobody has let us in included."""
        return judged(self._seen, self._has_key, self._held_s())

    def close(self) -> None:
        """Idempotent."""
        self._reach.cancel()
        if not self._sock.closed:
            self._sock.disable_monitor()
        self._watch.close()
        self._sock.close(linger=0)
