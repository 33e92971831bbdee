"""The inspection tool at a metaserver, with tiers that follow a script."""

from __future__ import annotations

import asyncio

from loopback import Inbox, run
from metaserver_world import K, Loop, World
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.messages.catalogue import PENDING, SEALED
from pegaflow.common.wire.messages.inspection import Resync
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.cli import catalogue, status
from pegaflow.services.cli.cluster import Cluster
from pegaflow.services.cli.listing import Listing, Output
from pegaflow.services.cli.monitor import Monitor
from pegaflow.services.cli.tap import Tapped
from pegaflow.services.cli.target import Target


def test_status_of_the_tool_walks_from_the_metaserver_to_the_tiers() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        await world.up("a", 1)
        async with Cluster(Target((world.service.requests_endpoint,), ("tcp://127.0.0.1:1",), 2.0)) as cluster:
            seen = await status.look(cluster)
        assert [(one["service"], one["node"], one["code"]) for one in seen.rows] == [
            ("metaserver", "m", ""),
            ("tier", "?", "deadline"),
            ("tier", "a", ""),
        ]
        assert [one.endpoint for one in seen.wrong] == ["tcp://127.0.0.1:1"]
        cells = Listing(status.COLUMNS, seen.rows[2:]).render(Output.TABLE).splitlines()[1].split("  ")
        assert [cell.strip() for cell in cells if cell][2:9] == ["ready", "1.2s", "-", "3 sealed", "512MiB", "1GiB", "0"]
        assert seen.rows[2]["status"]["free_bytes"] == 1 << 29
        tier.close()
        world.close()

    run(test)


def test_monitor_of_the_tool_listens_to_tiers_that_the_metaserver_knows() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        await world.up("a", 1)
        tapped: Inbox[Tapped] = Inbox()
        monitor = Monitor([b"c"], tapped.put)
        watching = loop.create_task(monitor.run(Target((world.service.requests_endpoint,), (), 5.0), (), None))
        await tapped.take(lambda one: one.envelope.kind == "catalogue_beat")
        tier.change({K[0]: SEALED})
        delta = await tapped.take(lambda one: one.envelope.kind == "delta")
        assert (delta.header.node, delta.envelope.topic, delta.message.keys) == ("a", b"c", [K[0]])
        late = world.tier("b", 2)
        assert (await tapped.take(lambda one: one.header.node == "b")).endpoint == late.events
        monitor.enough.set()
        assert await watching is True
        tier.close()
        late.close()
        world.close()

    run(test)


def test_monitor_of_the_tool_without_a_metaserver() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        monitor = Monitor([b""], lambda _: None)
        assert await monitor.run(Target(("tcp://127.0.0.1:1",), (), 0.1), (), None) is False

    run(test)


def test_a_diff_names_what_is_believed_wrongly_and_a_resync_cures_it() -> None:
    """A tier that changes its catalogue behind everybody's back: no delta, no beat."""

    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        tier.change(dict.fromkeys(K[:4], SEALED))
        await world.up("a", 1)
        assert await world.locate(*K[:4]) == [SEALED] * 4
        tier.stop_beating()
        at = Target((world.service.requests_endpoint,), (), 20.0)

        async def rows() -> list[tuple[str | None, int, str, str]]:
            await tier.say_hello()  # a silent node would be dead soon
            async with Cluster(at) as cluster:
                found = await catalogue.diff(cluster, "a")
            assert bool(found.wrong) == bool(found.rows)
            return [(row["key"], row["count"], row["tier_state"], row["believed_state"]) for row in found.rows]

        assert await rows() == []
        del tier.entries[K[0]]
        tier.entries |= {K[1]: PENDING, K[8]: SEALED}
        assert await rows() == [
            (K[1].hex(), 1, "pending", "sealed"),
            (K[8].hex(), 1, "sealed", "gone"),
            (None, 1, "gone", "sealed"),
        ]
        syncs = len(tier.syncs)
        assert await world.client.request(Resync("a"), 20.0) == Done()
        while await rows():
            await asyncio.sleep(0.01)
        assert len(tier.syncs) > syncs
        tier.close()
        world.close()

    run(test)
