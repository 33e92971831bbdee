"""Connections to tiers: per node one SUB for its catalogue and one DEALER for snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from pegaflow.common.bus.clone import CHUNK_S
from pegaflow.common.bus.events import CATALOGUE, EventSubscriber, Step
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.envelope import EventHeader
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import SyncChunk
from pegaflow.services.metaserver.commands import AskChunk, Connect
from pegaflow.services.metaserver.events import ChunkAnswer, Event, Heard


class _Link(NamedTuple):
    catalogue: EventSubscriber
    requests: RpcClient


class Links:
    """Owns the sockets. What comes in goes to `handle`, on the loop."""

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, handle: Callable[[Event], None]) -> None:
        self._factory, self._loop, self._handle = factory, loop, handle
        self._links: dict[str, _Link] = {}
        self._malformed = 0  # of links that are gone

    @property
    def malformed(self) -> int:
        return self._malformed + sum(link.catalogue.malformed for link in self._links.values())

    def connect(self, command: Connect) -> None:
        """Raises `LocalError` with `bad_endpoint`; then there is no link."""
        self.disconnect(command.node)

        def heard(_: bytes, header: EventHeader, message: Any, __: Step) -> None:
            if header.node == command.node:  # another tier may have taken over the port
                self._handle(Heard(command.node, header.epoch, header.seq, message))

        requests = RpcClient(self._factory, self._loop, command.requests)
        try:
            catalogue = EventSubscriber(self._factory, self._loop, command.events, heard)
        except Exception:
            requests.close()
            raise
        catalogue.subscribe(CATALOGUE)
        self._links[command.node] = _Link(catalogue, requests)

    def disconnect(self, node: str) -> None:
        """Idempotent. Chunks on their way are answered `unreachable`."""
        link = self._links.pop(node, None)
        if link is not None:
            self._malformed += link.catalogue.malformed
            link.catalogue.close()
            link.requests.close()

    def ask(self, command: AskChunk) -> None:
        sync_id = command.sync.sync_id

        def answered(answer: Any) -> None:
            if not isinstance(answer, SyncChunk | Exception):
                answer = RemoteError(ErrorCode.BAD_MESSAGE, f"expected sync_chunk, got {type(answer).__name__}")
            self._handle(ChunkAnswer(command.node, sync_id, answer))

        link = self._links.get(command.node)
        if link is None:
            self._loop.call_soon(answered, RemoteError(ErrorCode.UNREACHABLE, f"node {command.node!r} is not connected"))
        else:
            link.requests.send(command.sync, CHUNK_S, answered, command.epoch)

    def poke(self) -> None:
        """Call it regularly: see `EventSubscriber.poke`."""
        for link in self._links.values():
            link.catalogue.poke()

    def close(self) -> None:
        for node in list(self._links):
            self.disconnect(node)
