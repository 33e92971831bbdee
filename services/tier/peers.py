"""Request clients of a tier: the metaservers it says hello to and asks, and the tiers it fetches from."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pegaflow.common.bus.endpoint import check_endpoint
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.catalogue import Locate, Nodes
from pegaflow.common.wire.messages.operate import Ping

HELLO_BUDGET_S = 1.0
NUDGE_S = 0.25
MAX_PEERS = 1024


class _Replica:
    """One metaserver. `known`: it said so to our last hello, which it does once its copy of our catalogue is whole."""

    __slots__ = ("client", "known")

    def __init__(self, client: RpcClient) -> None:
        self.client, self.known = client, False


@dataclass(slots=True, eq=False)
class _Ask:
    """One question on its way from replica to replica, within one budget."""

    message: Message
    deadline: float
    on_reply: Callable[[Any], None]
    untried: list[_Replica]
    asked_at: float = 0.0
    nudge: asyncio.TimerHandle | None = None


def in_turn(endpoints: Sequence[str], node: str) -> list[str]:
    """The same endpoints, beginning with one that depends on the node: so that all of them are asked by somebody."""
    first = zlib.crc32(node.encode()) % len(endpoints) if endpoints else 0
    return [*endpoints[first:], *endpoints[:first]]


class Metaservers:
    """Any number of replicas: everyone gets the hello, one is asked at a time.

    First is who knows us, then who has not failed for longest. A question that fails there goes to the next one with what is left
    of its budget. A locate may rightly take long, so whoever is silent for NUDGE_S is sent a ping: if that is not answered as
    soon, the connection is given up (see `RpcClient`), and with it the question's stay at this replica.
    """

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoints: Sequence[str]) -> None:
        self._loop = loop
        self._line = [_Replica(RpcClient(factory, loop, endpoint)) for endpoint in endpoints]

    def __bool__(self) -> bool:
        return bool(self._line)

    @property
    def known(self) -> bool:
        """Whether some metaserver's copy of our catalogue is whole."""
        return any(replica.known for replica in self._line)

    @property
    def counts(self) -> tuple[int, int]:
        """How many there are, and whose copy of our catalogue is whole."""
        return len(self._line), sum(replica.known for replica in self._line)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return sum(replica.client.in_flight for replica in self._line)

    def tell(self, message: Message) -> None:
        """Sends to all; a reply says whether that metaserver's clone is whole."""
        for replica in list(self._line):
            if replica.client.in_flight < 64:
                replica.client.send(message, HELLO_BUDGET_S, partial(self._heard, replica))

    def _heard(self, replica: _Replica, reply: Any) -> None:
        replica.known = bool(getattr(reply, "known", False))
        if isinstance(reply, PegaflowError):
            self._to_the_end(replica)

    def _to_the_end(self, replica: _Replica) -> None:
        self._line.remove(replica)
        self._line.append(replica)

    def ask(self, message: Locate | Nodes, budget_s: float, on_reply: Callable[[Any], None]) -> None:
        """Asks until one answers, has refused for good, or the budget is over; then the last failure is the answer."""
        now = self._loop.time()
        ask = _Ask(message, now + budget_s, on_reply, list(self._line))
        if not ask.untried:
            self._loop.call_soon(on_reply, RemoteError(ErrorCode.UNREACHABLE, "no metaserver is configured"))
            return
        self._send(ask, message)

    def _send(self, ask: _Ask, message: Locate | Nodes) -> None:
        ask.untried.sort(key=self._line.index)
        replica = next((replica for replica in ask.untried if replica.known), ask.untried[0])
        ask.untried.remove(replica)
        ask.asked_at = self._loop.time()
        ask.nudge = self._loop.call_later(NUDGE_S, self._nudge, ask, replica)
        replica.client.send(message, ask.deadline - ask.asked_at, lambda reply: self._answered(ask, replica, message, reply))

    def _nudge(self, ask: _Ask, replica: _Replica) -> None:
        ask.nudge = None
        if replica.client.heard_at < ask.asked_at:
            replica.client.send(Ping(), NUDGE_S, lambda _: None)

    def _answered(self, ask: _Ask, replica: _Replica, message: Locate | Nodes, reply: Any) -> None:
        if ask.nudge is not None:
            ask.nudge.cancel()
        left = ask.deadline - self._loop.time()
        if isinstance(reply, PegaflowError):
            if reply.code in (ErrorCode.UNREACHABLE, ErrorCode.DEADLINE):
                replica.known = False
            self._to_the_end(replica)
            if ask.untried and reply.retryable and left > 0:
                if isinstance(message, Locate):
                    spent_ms = int((self._loop.time() - ask.asked_at) * 1e3)
                    message = replace(message, wait_ms=max(0, message.wait_ms - spent_ms))
                self._send(ask, message)
                return
        ask.on_reply(reply)

    def close(self) -> None:
        for replica in list(self._line):
            replica.client.close()


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
                client = RpcClient(self._factory, self._loop, endpoint)  # which wants the server's key, where we have one
            except PegaflowError as error:
                self._loop.call_soon(on_reply, error)
                return
            while len(self._clients) >= MAX_PEERS:
                self._clients.pop(next(iter(self._clients))).close()
        self._clients[endpoint] = client
        client.send(message, budget_s, on_reply, epoch)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
