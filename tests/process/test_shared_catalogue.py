"""Several metaservers over one real Redis: who writes, what readers see, and what deaths and pauses of each cost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import PATIENCE_S, bound_again, run
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, Hello, Locate
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.service import MetaserverService
from pegaflow.services.metaserver.shared import SharedState
from redis_server import RedisServer
from scripted_tier import ScriptedTier

Loop = asyncio.AbstractEventLoop
ANY = "tcp://127.0.0.1:*"
K = [b"%02d" % n for n in range(20)]


class Replica:
    """A metaserver in this process over the shared store."""

    def __init__(self, factory: SocketFactory, loop: Loop, redis: RedisServer, name: str) -> None:
        self.lifecycle = Lifecycle("metaserver")
        config = MetaserverConfig(name, ANY, ANY, ANY, store=redis.url)
        self.service = MetaserverService(config, self.lifecycle, loop)
        self.service.start()
        self.client = RpcClient(factory, loop, self.service.requests_endpoint)

    @property
    def state(self) -> SharedState:
        assert isinstance(self.service.state, SharedState)
        return self.service.state

    def dump(self) -> dict[str, Any]:
        return self.state.dump(0.0)

    async def locate(self, *keys: bytes, wait_ms: int = 0, expected: bool = False, asker: str = "me") -> list[int]:
        answer = await self.client.request(Locate(asker, keys, wait_ms, expected), 25.0)
        return list(answer.states)

    async def close(self) -> None:
        self.client.close()
        self.service.close()
        await self.service.ended()


async def until(what: str, check: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            await asyncio.sleep(0.005)


class Fleet:
    """Two metaservers and a tier that says hello to both."""

    def __init__(self, factory: SocketFactory, loop: Loop, redis: RedisServer) -> None:
        self.factory, self.loop = factory, loop
        self.replicas = [Replica(factory, loop, redis, f"m{n}") for n in range(2)]

    async def tier(self, epoch: int = 1, **options: Any) -> ScriptedTier:
        tier = ScriptedTier(self.factory, self.loop, "a", epoch, self.replicas[0].service.requests_endpoint, **options)
        tier.also(self.replicas[1].service.requests_endpoint)
        await until("both know it", lambda: all(replica.dump()["stored"] for replica in self.replicas))
        return tier

    def writer(self) -> Replica:
        [writer] = [replica for replica in self.replicas if replica.dump()["writes"]]
        return writer

    def reader(self) -> Replica:
        [reader] = [replica for replica in self.replicas if not replica.dump()["writes"]]
        return reader

    async def close(self) -> None:
        for replica in self.replicas:
            replica.state.validate()
            await replica.close()


@pytest.fixture
def redis(tmp_path: Path) -> Any:
    with RedisServer(tmp_path) as server:
        yield server


def test_one_writes_and_all_answer(redis: RedisServer) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        fleet = Fleet(factory, loop, redis)
        tier = await fleet.tier()
        tier.change({K[0]: SEALED, K[1]: PENDING})
        for replica in fleet.replicas:
            assert await replica.locate(K[0], wait_ms=20_000, expected=True) == [SEALED]
            assert await replica.locate(K[0], K[1], K[2], K[0]) == [SEALED, PENDING, GONE]
            assert await replica.locate(K[0], asker="a") == [GONE], "the asker's own pages do not count"
        assert fleet.reader().state.index.generations.keys() != set() and not len(fleet.reader().state.index)
        assert len(tier.syncs) == 1, "one of them clones"
        tier.close()
        await fleet.close()

    run(test)


def test_a_wait_at_the_reader_is_answered_by_what_the_writer_writes(redis: RedisServer) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        fleet = Fleet(factory, loop, redis)
        tier = await fleet.tier()
        reader = fleet.reader()
        waiting = loop.create_task(reader.locate(K[3], K[4], wait_ms=20_000, expected=True))
        await until("it waits", lambda: len(reader.state.waiters))
        tier.change({K[4]: SEALED})
        tier.change({K[3]: PENDING})
        assert await waiting == [PENDING, SEALED]
        tier.change({K[5]: PENDING})
        await until("it is promised", lambda: reader.dump()["stored"])
        ends = loop.create_task(reader.locate(K[5], wait_ms=20_000))
        await until("it waits, or was asked before the promise came", lambda: len(reader.state.waiters) or ends.done())
        tier.change({K[5]: GONE})
        assert await ends == [GONE]
        assert await reader.locate(K[7], wait_ms=50, expected=True) == [GONE], "and a wait ends on time"
        tier.close()
        await fleet.close()

    run(test)


def test_when_the_writer_dies_the_other_one_takes_over(redis: RedisServer) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        fleet = Fleet(factory, loop, redis)
        tier = await fleet.tier()
        tier.change({K[0]: SEALED})
        writer, reader = fleet.writer(), fleet.reader()
        assert await reader.locate(K[0], wait_ms=20_000, expected=True) == [SEALED]
        await writer.close()
        assert await reader.locate(K[0]) == [SEALED], "what was written is still there"
        await until("it writes", lambda: reader.dump()["writes"])
        tier.change({K[1]: SEALED})
        assert await reader.locate(K[1], wait_ms=20_000, expected=True) == [SEALED]
        assert await reader.locate(K[0]) == [SEALED]
        await until("whole again, from the tier", lambda: reader.state.nodes.by_name["a"].clone.whole)
        tier.close()
        await reader.close()

    run(test)


def test_a_new_life_of_the_tier_voids_what_is_stored(redis: RedisServer, tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        fleet = Fleet(factory, loop, redis)
        at: dict[str, Any] = {"requests": f"ipc://{tmp_path}/r", "events": f"ipc://{tmp_path}/e"}
        old = await fleet.tier(1, **at)
        old.change({K[0]: SEALED})
        reader = fleet.reader()
        assert await reader.locate(K[0], wait_ms=20_000, expected=True) == [SEALED]
        old.close()
        new = await bound_again(lambda: ScriptedTier(factory, loop, "a", 2, reader.service.requests_endpoint, **at, hello=False))
        new.also(fleet.writer().service.requests_endpoint)
        await reader.client.request(new.hello_message(), 20.0)
        assert await reader.locate(K[0]) == [GONE], "at once, though the record of the old life is still there"
        new.begin()
        new.change({K[1]: SEALED})
        assert await reader.locate(K[1], wait_ms=20_000, expected=True) == [SEALED]
        new.close()
        await fleet.close()

    run(test)


def test_a_store_that_is_away_is_an_error_and_not_a_miss_and_its_loss_heals(redis: RedisServer) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        fleet = Fleet(factory, loop, redis)
        tier = await fleet.tier()
        tier.change({K[0]: SEALED})
        reader = fleet.reader()
        assert await reader.locate(K[0], wait_ms=20_000, expected=True) == [SEALED]
        redis.kill()
        with pytest.raises(RemoteError) as caught:
            await reader.locate(K[0])
        assert caught.value.code == ErrorCode.STORE_UNREACHABLE and caught.value.retryable
        await until("operators see it", lambda: reader.lifecycle.reasons())
        redis.start()
        await until("found again, from the tier", lambda: all(replica.dump()["stored"] for replica in fleet.replicas))
        for replica in fleet.replicas:
            await until("ready", lambda replica=replica: not replica.lifecycle.reasons())  # type: ignore[misc]
            assert await replica.locate(K[0], wait_ms=20_000, expected=True) == [SEALED]
        tier.close()
        await fleet.close()

    run(test)


def test_a_store_that_stands_still_does_not_stop_a_metaserver(redis: RedisServer) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        fleet = Fleet(factory, loop, redis)
        tier = await fleet.tier()
        tier.change({K[0]: SEALED})
        reader = fleet.reader()
        redis.send(signal.SIGSTOP)
        try:
            with pytest.raises(RemoteError) as caught:
                await reader.locate(K[0])
            assert caught.value.code == ErrorCode.STORE_UNREACHABLE
            hello = Hello("b", 9, ANY, ANY, ANY, "1")
            assert not (await reader.client.request(hello, 20.0)).known, "what needs no store goes on"
        finally:
            redis.send(signal.SIGCONT)
        await until("the store is back", lambda: not reader.lifecycle.reasons())
        assert await reader.locate(K[0], wait_ms=20_000, expected=True) == [SEALED]
        tier.close()
        await fleet.close()

    run(test)


def test_without_the_client_library_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from pegaflow.common.lifecycle import StartError
    from pegaflow.services.metaserver.redis_store import RedisStore

    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(StartError) as caught:
        RedisStore(f"unix://{tmp_path}/none", "p", 1, lambda _: None, Lifecycle("metaserver"))
    assert caught.value.code == "redis_missing" and "pegaflow[redis]" in caught.value.text
