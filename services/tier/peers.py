"""Request clients of a tier: the metaservers it says hello to and asks, and the tiers it fetches from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory, check_endpoint
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError

HELLO_BUDGET_S = 1.0
MAX_PEERS = 1024


class Metaservers:
    """Any number of replicas: everyone gets the hello, one is asked; who fails goes to the end of the line."""

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoints: Sequence[str]) -> None:
        self._clients = [RpcClient(factory, loop, endpoint) for endpoint in endpoints]
        self.known = False

    def __bool__(self) -> bool:
        return bool(self._clients)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return sum(client.in_flight for client in self._clients)

    def tell(self, message: Message) -> None:
        """Sends to all; a reply says whether that metaserver's clone is whole."""
        for client in self._clients:
            if client.in_flight < 64:
                client.send(message, HELLO_BUDGET_S, self._heard)

    def _heard(self, reply: Any) -> None:
        self.known = bool(getattr(reply, "known", False))

    def ask(self, message: Message, budget_s: float, on_reply: Callable[[Any], None]) -> None:
        """Asks the first in line; a failure is the answer, and the next question goes to the next one."""
        if not self._clients:
            on_reply(RemoteError(ErrorCode.UNREACHABLE, "no metaserver is configured"))
            return
        client = self._clients[0]

        def answered(reply: Any) -> None:
            if isinstance(reply, PegaflowError) and self._clients[0] is client:
                self._clients.append(self._clients.pop(0))
            on_reply(reply)

        client.send(message, budget_s, answered)

    def close(self) -> None:
        for client in self._clients:
            client.close()


class Peers:
    """Clients of other tiers by endpoint, made on first use; the one unused for longest goes when there are too many."""

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        self._factory, self._loop = factory, loop
        self._clients: dict[str, RpcClient] = {}

    def send(self, endpoint: str, epoch: int, message: Message, budget_s: float, on_reply: Callable[[Any], None]) -> None:
        """A request to the tier's life `epoch` at `endpoint`; a bad endpoint is answered like a failure."""
        client = self._clients.pop(endpoint, None)
        if client is None:
            try:
                check_endpoint(endpoint)
            except PegaflowError as error:
                self._loop.call_soon(on_reply, error)
                return
            client = RpcClient(self._factory, self._loop, endpoint)
            while len(self._clients) >= MAX_PEERS:
                self._clients.pop(next(iter(self._clients))).close()
        self._clients[endpoint] = client
        client.send(message, budget_s, on_reply, epoch)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
