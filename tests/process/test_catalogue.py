"""The catalogue over real processes: a metaserver that restarts, a tier that is cut off, and replicas of the metaserver.

PEGAFLOW_TEST_KEYS=100000 fills the tiers with as many keys; the default is what CI has time for."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import cluster as cluster_module
import pytest
from cluster import FINGERPRINT, Cluster, Engine, Process, ask, dump, free_port, make_keys, page_bytes, told, until
from pegaflow.common import clock
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import GONE, SEALED, Locate, Located, Nodes
from pegaflow.services.metaserver.nodes import NodeState
from stopwatch import Stopwatch

pytestmark = pytest.mark.timeout(300)

KEYS = int(os.environ.get("PEGAFLOW_TEST_KEYS", "2000"))
STEP = 500


@pytest.fixture
def folder() -> Path:
    made = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    made.mkdir(mode=0o700)
    return made


def many_keys(count: int, salt: str) -> list[bytes]:
    return [FINGERPRINT + hashlib.sha256(f"{salt}{n}".encode()).digest() for n in range(count)]


def fill(engine: Engine, keys: list[bytes]) -> None:
    """Saves pages with whatever bytes are there."""
    for at in range(0, len(keys), STEP):
        ref = engine.intent(keys[at : at + STEP])
        grant = engine.rank.take_grant(ref, clock.now() + 20)
        assert grant is not None
        engine.rank.written(grant, list(grant.positions))


def located(metaserver: str, keys: list[bytes], wait_ms: int = 0) -> Located:
    answer = ask(metaserver, Locate("test", keys, wait_ms, wait_ms > 0, 0, True), 20.0)
    assert isinstance(answer, Located)
    return answer


def all_located(metaserver: str, keys: list[bytes]) -> bool:
    try:
        return all(set(located(metaserver, keys[at : at + 10_000]).states) == {SEALED} for at in range(0, len(keys), 10_000))
    except PegaflowError:
        return False


async def all_sealed(metaserver: str, wanted: dict[str, int]) -> None:
    """Returns once so many keys of each node are to be found there. Asks little and cheaply, because it is timed."""
    factory = SocketFactory()
    client = RpcClient(factory, asyncio.get_running_loop(), metaserver)
    try:
        async with asyncio.timeout(120):
            while True:
                answer = await client.request(Nodes(), 20.0)
                found = zip(answer.nodes, answer.states, answer.sealed, strict=True)
                if {node: sealed for node, state, sealed in found if state == NodeState.UP} == wanted:
                    return
                await asyncio.sleep(0.01)
    finally:
        client.close()
        factory.close()


def test_after_a_restart_of_the_metaserver_every_key_is_located_again(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """By one snapshot of each tier, begun with its first hello; nothing is asked of the engines."""
    monkeypatch.setattr(cluster_module, "PAGE_BYTES", GRANULE)
    with Cluster(folder, mover=False, pool=str(KEYS * GRANULE * 5 // 4 + (64 << 20))) as cluster:
        cluster.wait_ready()
        keys = {node: many_keys(KEYS, node) for node in "ab"}
        for node in "ab":
            engine = Engine(cluster, node, node).attached()
            fill(engine, keys[node])
            engine.close()
        at = cluster.metaserver_endpoint
        for node in "ab":
            until(f"the keys of {node}", lambda node=node: all_located(at, keys[node]), 120)  # type: ignore[misc]
        cluster.metaserver.kill()
        cluster.metaserver.start()
        until("it runs", lambda: dump(at).get("state") == "ready")
        with Stopwatch(f"located again after a restart of the metaserver: 2 tiers of {KEYS} keys"):
            asyncio.run(all_sealed(at, dict.fromkeys("ab", KEYS)))
        for node in "ab":
            assert all_located(at, keys[node]), "what it says it has, it finds"
        counts = told(at)["counts"]
        assert counts["sync_first"] == counts["swaps"] == 2, "one snapshot each was enough"
        for node in "ab":
            answer = located(at, keys[node][:3])
            assert answer.nodes == [node] and set(answer.owners) == {0}


def test_a_stopped_tier_is_like_one_behind_a_cut_network(folder: Path) -> None:
    with Cluster(folder, "a", mover=False) as cluster:
        cluster.wait_ready()
        keys, at = make_keys(5), cluster.metaserver_endpoint
        engine = Engine(cluster, "a").attached()
        engine.save(keys)
        until("located", lambda: all_located(at, keys))
        [before] = located(at, keys).epochs
        os.kill(cluster.tiers["a"].process.pid, signal.SIGSTOP)
        until("its silence is noticed", lambda: dump(at).get("nodes") == [])
        answer = located(at, keys)
        assert answer.states == bytes([GONE] * 5) and answer.nodes == [], "no stale owner after that"
        os.kill(cluster.tiers["a"].process.pid, signal.SIGCONT)
        until("located again", lambda: all_located(at, keys))
        assert list(located(at, keys).epochs) == [before], "the same life, with all it had"
        counts = told(at)["counts"]
        assert counts["nodes_dead"] == 1 and counts["sync_first"] == 2
        engine.close()


def test_an_owner_that_leaves_is_not_named_any_more(folder: Path) -> None:
    with Cluster(folder, "a", mover=False) as cluster:
        cluster.wait_ready()
        keys, at = make_keys(3), cluster.metaserver_endpoint
        engine = Engine(cluster, "a").attached()
        engine.save(keys)
        until("located", lambda: all_located(at, keys))
        engine.close()
        assert cluster.tiers["a"].stop() == 0
        assert located(at, keys).states == bytes([GONE] * 3), "its goodbye came before its end"
        assert told(at)["counts"]["nodes_bye"] == 1


@pytest.fixture
def two_metaservers(folder: Path) -> Iterator[tuple[Cluster, Process, str]]:
    second = f"tcp://127.0.0.1:{free_port()}"
    flags = ["--requests", second, "--events", "tcp://127.0.0.1:*", "--control", "tcp://127.0.0.1:*", "--health-port", "0"]
    replica = Process("pegaflow.services.metaserver", *flags)
    try:
        with Cluster(folder, more=("--metaserver", second)) as cluster:
            cluster.wait_ready()
            for at in (cluster.metaserver_endpoint, second):
                until("both tiers", lambda at=at: [node["state"] for node in dump(at).get("nodes", [])] == ["up", "up"])  # type: ignore[misc]
            yield cluster, replica, second
    finally:
        replica.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lookup_survives_the_loss_of_a_metaserver_within_its_wait(
    two_metaservers: tuple[Cluster, Process, str], number: signal.Signals
) -> None:
    cluster, _, second = two_metaservers
    keys = make_keys(4)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    p.save(keys)
    for at in (cluster.metaserver_endpoint, second):
        until("located", lambda at=at: all_located(at, keys))  # type: ignore[misc]
    before = told(second)["counts"]["located_keys"]
    os.kill(cluster.metaserver.process.pid, number)
    answer = d.lookup(keys, wait_s=5.0)
    assert (answer.full, answer.code) == (4, ""), "found by the other one, in the same lookup"
    assert told(second)["counts"]["located_keys"] > before
    assert d.load(answer) == [page_bytes(key) for key in keys]
    p.close()
    d.close()
