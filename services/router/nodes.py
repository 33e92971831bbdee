"""Which nodes are up, as a metaserver says it: subscribed on start, asked again after every gap.

An operator sees it in `pegaflow_router_nodes`; the locator asks those nodes' tiers how their engines name pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pegaflow.common import logs
from pegaflow.common.bus.events import NODES, EventSubscriber, Step
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.envelope import EventHeader
from pegaflow.common.wire.messages.catalogue import NodeDown, NodeList, NodeUp
from pegaflow.common.wire.messages.catalogue import Nodes as AskNodes

ASK_BUDGET_S = 1.0
POKE_S = 0.5

_SERVING = ("up", "draining")
"""States of nodes that deliver pages; `node_up` is said of both."""

log = logs.get(__name__)


class NodeEvents:
    """Owns its sockets, on the loop that calls `start`. `changed(count)` hears how many nodes are up."""

    def __init__(self, requests: str, events: str, changed: Callable[[int], None], ring: Keyring | None = None) -> None:
        self._requests, self._events, self._changed, self._ring = requests, events, changed, ring
        self._up: dict[str, int] = {}
        self._endpoints: dict[str, str] = {}
        self._moved = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def up(self) -> dict[str, int]:
        """Node → epoch."""
        return dict(self._up)

    @property
    def endpoints(self) -> dict[str, str]:
        """Node → its request endpoint, of those that are up."""
        return dict(self._endpoints)

    async def moved(self, seconds: float) -> None:
        """Returns when a node came or went, or after so many seconds. For one waiter."""
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            pass
        self._moved.clear()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._factory = SocketFactory(self._ring)
        self._client = RpcClient(self._factory, loop, self._requests)
        self._subscriber = EventSubscriber(self._factory, loop, self._events, self._on_event)
        self._subscriber.subscribe(NODES)
        self._poke()

    def _poke(self) -> None:
        self._subscriber.poke()
        self._timer = self._loop.call_later(POKE_S, self._poke)

    def _on_event(self, topic: bytes, header: EventHeader, message: Any, step: Step) -> None:
        if step in (Step.FIRST, Step.GAP, Step.NEW_EPOCH):
            if step is Step.NEW_EPOCH:
                self._set({}, {})
            self._client.send(AskNodes(), ASK_BUDGET_S, self._listed)
        if step is Step.OLD:
            return
        if isinstance(message, NodeUp):
            self._set({**self._up, message.node: message.epoch}, {**self._endpoints, message.node: message.requests})
            log.info("node_up", peer=message.node)
        elif isinstance(message, NodeDown) and self._up.get(message.node) == message.epoch:
            self._set({node: epoch for node, epoch in self._up.items() if node != message.node}, self._endpoints)
            log.info("node_down", peer=message.node, reason=message.reason)

    def _listed(self, answer: Any) -> None:
        if isinstance(answer, NodeList):
            rows = list(zip(answer.nodes, answer.epochs, answer.states, answer.requests, strict=True))
            endpoints = {node: requests for node, _, _, requests in rows}
            self._set({node: epoch for node, epoch, state, _ in rows if state in _SERVING}, endpoints)

    def _set(self, up: dict[str, int], endpoints: dict[str, str]) -> None:
        self._up = up
        self._endpoints = {node: endpoints[node] for node in up if node in endpoints}
        self._moved.set()
        self._changed(len(up))

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._client.close()
            self._subscriber.close()
            self._factory.close()
