"""A tap on event sockets: every message of some topics, as it lies on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pegaflow.common.bus.events import SHOW_HEAD, Step, TopicCursor
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.envelope import Envelope, EventHeader, open_envelope
from pegaflow.common.wire.errors import WireError


class Tapped(NamedTuple):
    """`message` None: it does not decode, `wrong` says why. `lost`: how many before it on its topic never came."""

    endpoint: str
    envelope: Envelope
    header: EventHeader
    message: Any
    wrong: str
    lost: int


class Tap:
    """Subscribes to topics by prefix at any number of publishers. Owns the sockets."""

    def __init__(
        self,
        factory: SocketFactory,
        loop: asyncio.AbstractEventLoop,
        prefixes: Sequence[bytes],
        on_message: Callable[[Tapped], None],
    ) -> None:
        self._factory, self._loop, self._prefixes, self._on_message = factory, loop, prefixes, on_message
        self._ports: dict[str, Port] = {}
        self._cursors: dict[tuple[str, bytes], TopicCursor] = {}
        self.malformed = 0

    @property
    def endpoints(self) -> set[str]:
        return set(self._ports)

    def listen(self, endpoint: str) -> None:
        """Idempotent. Raises `LocalError` with `bad_endpoint`."""
        if endpoint not in self._ports:
            port = Port(self._factory.sub(endpoint), self._loop, lambda frames: self._on_frames(endpoint, frames))
            self._ports[endpoint] = port
            for prefix in self._prefixes:
                port.subscribe(prefix)

    def leave(self, endpoint: str) -> None:
        self._ports.pop(endpoint).close()
        for known in [known for known in self._cursors if known[0] == endpoint]:
            del self._cursors[known]

    def poke(self) -> None:
        """Call it regularly: a SUB re-subscribes after a reconnect only when it is touched."""
        for port in self._ports.values():
            port.poke()

    def _on_frames(self, endpoint: str, frames: list[bytes]) -> None:
        try:
            envelope = open_envelope(frames, EventHeader)
        except WireError:
            self.malformed += 1
            return
        header: EventHeader = envelope.header
        cursor = self._cursors.setdefault((endpoint, envelope.topic), TopicCursor())
        seen, shows_head = cursor.seen, envelope.kind in SHOW_HEAD
        step = cursor.feed(header.epoch, header.seq, shows_head)
        lost = header.seq - seen - (not shows_head) if step is Step.GAP else 0
        try:
            message, wrong = envelope.message(), ""
        except WireError as error:
            message, wrong = None, f"{error.code}: {error.text}"
        self._on_message(Tapped(endpoint, envelope, header, message, wrong, lost))

    def close(self) -> None:
        for port in self._ports.values():
            port.close()
        self._ports.clear()
