"""A metaserver over real sockets, a client of it and a listener to its events."""

from __future__ import annotations

import asyncio
from typing import Any

from loopback import Inbox, bound_again
from pegaflow.common.bus.events import NODES, EventSubscriber
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.lifecycle import Lifecycle, StartError
from pegaflow.common.wire.messages.catalogue import Locate, NodeUp
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.service import MetaserverService
from scripted_tier import ScriptedTier

Loop = asyncio.AbstractEventLoop
K = [b"key-%d" % n for n in range(9)]
ANY = "tcp://127.0.0.1:*"


class World:
    """A metaserver, a client of it and a listener to its events."""

    def __init__(self, factory: SocketFactory, loop: Loop, requests: str = ANY) -> None:
        self.factory, self.loop = factory, loop
        self.lifecycle = Lifecycle("metaserver")
        self.service = self._start(requests)
        self.client = RpcClient(factory, loop, self.service.requests_endpoint)
        self.nodes: Inbox[Any] = Inbox()
        self._listener = EventSubscriber(
            factory, loop, self.service.events_endpoint, lambda topic, header, message, step: self.nodes.put(message)
        )
        self._listener.subscribe(NODES)

    def _start(self, requests: str) -> MetaserverService:
        service = MetaserverService(MetaserverConfig("m", requests, ANY, ANY), self.lifecycle, self.loop)
        try:
            service.start()
        except StartError:
            service.close()
            raise
        return service

    async def restart(self) -> None:
        """A new life at the same request endpoint."""
        endpoint = self.service.requests_endpoint
        self.service.close()
        self.service = await bound_again(lambda: self._start(endpoint))

    def tier(self, node: str, epoch: int, **options: Any) -> ScriptedTier:
        return ScriptedTier(self.factory, self.loop, node, epoch, self.service.requests_endpoint, **options)

    async def locate(self, *keys: bytes, wait_ms: int = 20_000, expected: bool = True) -> list[int]:
        answer = await self.client.request(Locate("me", keys, wait_ms, expected), 25.0)
        return list(answer.states)

    async def up(self, node: str, epoch: int) -> None:
        await self.nodes.take(
            lambda message: message == NodeUp(node, epoch, message.requests) if type(message) is NodeUp else False
        )

    def close(self) -> None:
        self._listener.close()
        self.client.close()
        self.service.close()
