"""The metaserver's shell over real sockets, with tiers that follow a script."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import bound_again, run
from metaserver_world import ANY, K, Loop, World
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.lifecycle import Lifecycle, StartError, State
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, Hello, Locate, NodeDown, Nodes
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Document, Drain, Dump, LogLevel, Ping, Pong, Status
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.metrics import MetaserverMetrics
from pegaflow.services.metaserver.service import MetaserverService
from prometheus_client import CollectorRegistry


@pytest.fixture(autouse=True)
def log_level_as_before() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


def test_a_tier_says_hello_and_its_pages_are_found() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        tier.change(dict.fromkeys(K[:7], SEALED))
        await world.up("a", 1)
        answer = await world.client.request(Locate("me", [K[0], K[8]], 0, False), 20.0)
        assert list(answer.states) == [SEALED, GONE]
        assert (list(answer.nodes), list(answer.epochs), list(answer.requests)) == (["a"], [1], [tier.requests])
        assert await tier.say_hello() is True
        tier.close()
        world.close()

    run(test)


def test_a_locate_waits_until_a_delta_answers_it() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        await world.up("a", 1)
        waiting = loop.create_task(world.locate(K[0], K[1]))
        await world.client.request(Ping(), 20.0)
        assert len(world.service.state.waiters) == 1
        tier.change({K[0]: PENDING})
        tier.change({K[0]: SEALED})
        assert await waiting == [SEALED, GONE]
        tier.close()
        world.close()

    run(test)


def test_a_wait_ends_at_its_time_without_a_tier() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        assert await world.locate(K[0], wait_ms=30) == [GONE]
        world.close()

    run(test)


def test_lost_deltas_are_repaired_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        tier.change(dict.fromkeys(K[:3], SEALED))
        await world.up("a", 1)
        with monkeypatch.context() as lossy:
            lossy.setattr(tier.publisher._port, "send", lambda _: False)
            tier.change({K[0]: GONE, K[4]: SEALED})
        assert await world.locate(K[4]) == [SEALED], "the beat shows the lost tail"
        assert await world.locate(K[0], wait_ms=0) == [GONE]
        assert world.service.state.counts["sync_gap"] == 1
        tier.close()
        world.close()

    run(test)


def test_a_tier_that_restarts_is_cloned_anew(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        at = {"requests": f"ipc://{tmp_path}/r", "events": f"ipc://{tmp_path}/e"}
        old = world.tier("a", 1, **at)
        old.change({K[0]: SEALED})
        await world.up("a", 1)
        old.close()
        new = await bound_again(lambda: world.tier("a", 2, **at))
        new.change({K[1]: SEALED})
        await world.nodes.take(lambda message: message == NodeDown("a", 1, "replaced"))
        await world.up("a", 2)
        assert await world.locate(K[1], K[0], wait_ms=0) == [SEALED, GONE]
        new.close()
        world.close()

    run(test)


def test_a_metaserver_that_restarts_is_whole_again_after_the_next_hello() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tiers = [world.tier("a", 1), world.tier("b", 2)]
        tiers[0].change({K[0]: SEALED})
        tiers[1].change({K[1]: SEALED})
        await world.up("a", 1)
        await world.restart()
        assert await world.locate(K[0]) == [SEALED]
        for tier in tiers:
            tier.close()
        world.close()

    run(test)


def test_a_second_tier_of_the_same_name_is_refused() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        await world.up("a", 1)
        other = world.tier("a", 2, hello=False)
        with pytest.raises(RemoteError) as caught:
            await other.say_hello()
        assert caught.value.code == ErrorCode.DUPLICATE_NODE and tier.requests in caught.value.text
        other.close()
        tier.close()
        world.close()

    run(test)


def test_a_hello_with_an_unusable_endpoint_is_refused() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        with pytest.raises(RemoteError) as caught:
            await world.client.request(Hello("a", 1, "nonsense", ANY, ANY, "1"), 20.0)
        assert caught.value.code == ErrorCode.BAD_ENDPOINT
        world.close()

    run(test)


def test_an_endpoint_that_cannot_be_connected_leaves_the_node_syncing() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        await world.client.request(Hello("a", 1, ANY, ANY, ANY, "1"), 20.0)
        listed = await world.client.request(Nodes(), 20.0)
        assert (listed.nodes, listed.states) == (["a"], ["syncing"])
        world.close()

    run(test)


def test_bye_is_published_at_once() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        tier.change({K[0]: SEALED})
        await world.up("a", 1)
        await tier.say_bye()
        assert await world.nodes.take(lambda message: isinstance(message, NodeDown)) == NodeDown("a", 1, "bye")
        assert await world.locate(K[0], wait_ms=0) == [GONE]
        tier.close()
        world.close()

    run(test)


def test_a_silent_tier_is_dead() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        tier = world.tier("a", 1)
        await world.up("a", 1)
        tier.close()
        assert await world.nodes.take(lambda message: isinstance(message, NodeDown)) == NodeDown("a", 1, "dead")
        world.close()

    run(test)


def test_operators_can_ask_and_command() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        control = RpcClient(factory, loop, world.service.control_endpoint)
        for client in (world.client, control):
            pong = await client.request(Ping(), 20.0)
            assert isinstance(pong, Pong) and (pong.service, pong.node, pong.epoch) == ("metaserver", "m", world.service.epoch)
            for message in (Status(), Dump()):
                document = await client.request(message, 20.0)
                assert isinstance(document, Document)
                fields = json.loads(document.json)
                assert fields["state"] == "ready" and fields["events"] == world.service.events_endpoint
        assert await control.request(LogLevel("error"), 20.0) == Done()
        assert logging.getLogger().level == logging.ERROR
        for refused, code in ((LogLevel("loud"), ErrorCode.BAD_MESSAGE), (Nodes(), ErrorCode.UNSUPPORTED)):
            with pytest.raises(RemoteError) as caught:
                await control.request(refused, 20.0)
            assert caught.value.code == code
        with pytest.raises(RemoteError) as caught:
            await world.client.request(Drain(), 20.0)
        assert caught.value.code == ErrorCode.UNSUPPORTED and world.lifecycle.state is State.READY
        assert await control.request(Drain(), 20.0) == Done()
        assert str(world.lifecycle.state) == "draining"
        control.close()
        world.close()

    run(test)


def test_a_taken_port_is_a_start_error() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        taken = world.service.requests_endpoint
        second = MetaserverService(MetaserverConfig("m2", taken, ANY, ANY), Lifecycle("metaserver"), loop)
        with pytest.raises(StartError) as caught:
            second.start()
        assert caught.value.code == ErrorCode.PORT_IN_USE and taken in caught.value.text
        second.close()
        world.close()

    run(test)


def test_metrics_follow_the_state() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        shown = MetaserverMetrics(CollectorRegistry())
        tier = world.tier("a", 1)
        tier.change({K[0]: SEALED})
        await world.up("a", 1)
        await world.locate(K[0])
        for _ in range(2):  # a second scrape adds nothing
            text = shown.render(world.service.state, 3, 0.0).decode()
        assert 'pegaflow_metaserver_keys{state="sealed"} 1.0' in text
        assert 'pegaflow_metaserver_nodes{state="up"} 1.0' in text
        assert 'pegaflow_metaserver_locates_total{outcome="found"} 1.0' in text
        assert 'pegaflow_metaserver_resyncs_total{reason="first"} 1.0' in text
        assert "pegaflow_metaserver_malformed_total 3.0" in text
        tier.close()
        world.close()

    run(test)
