"""The router's view of nodes follows a metaserver's events, also those it missed."""

from __future__ import annotations

import asyncio

from pegaflow.common import clock
from pegaflow.common.bus.events import NODES, EventPublisher
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.catalogue import Beat, NodeDown, NodeList, NodeUp
from pegaflow.services.router.nodes import NodeEvents


def test_nodes_come_and_go_and_a_missed_one_is_asked_for() -> None:
    asyncio.run(_follow())


async def _follow() -> None:
    loop, factory = asyncio.get_running_loop(), SocketFactory()
    listed = ["a"]

    def answer(request: Request) -> None:
        none = [""] * len(listed)
        zeros = u64s([0] * len(listed))
        request.reply(NodeList(listed, u64s([7] * len(listed)), ["up"] * len(listed), none, none, none, zeros, zeros))

    server = RpcServer(factory, loop, "tcp://127.0.0.1:*", 1, answer, clock.now)
    events = EventPublisher(factory, loop, "tcp://127.0.0.1:*", "metaserver", 1)
    counts: asyncio.Queue[int] = asyncio.Queue()
    nodes = NodeEvents(server.endpoint, events.endpoint, counts.put_nowait)

    async def become(count: int) -> None:
        async with asyncio.timeout(10):
            while await counts.get() != count:
                pass

    await nodes.start()
    await become(1)  # the welcome made it ask
    listed.append("b")
    events.publish(NODES, NodeUp("b", 7, ""))
    await become(2)
    events.publish(NODES, NodeDown("a", 6, "dead"))  # another life of a: not the one that is known
    listed.remove("a")
    events.publish(NODES, NodeDown("a", 7, "dead"))
    await become(1)
    assert nodes.up == {"b": 7}
    listed.append("c")
    events._heads[NODES] += 1  # an event that got lost
    events.publish(NODES, Beat())
    await become(2)
    await nodes.close()
    events.close()
    server.close()
    factory.close()
