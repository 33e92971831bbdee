"""The decode engine whose tier holds the prompt gets it: a real metaserver, tiers that say what they have, real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import HashAlgorithm, none_hash
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import SessionList
from pegaflow.common.wire.messages.catalogue import SEALED
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.service import MetaserverService
from pegaflow.services.router.locator import Locator
from pegaflow.services.router.nodes import NodeEvents
from routed import Routed, routed, until
from scripted_engine import ScriptedEngine, hangs, text_ids
from scripted_tier import ScriptedTier

COMPLETIONS = "/v1/completions"
ANY = "tcp://127.0.0.1:*"
TEXT = "all work and no play makes Jack a dull boy"
SCHEME = KeyScheme(b"f" * 16, 8, 4, HashAlgorithm.XXHASH_CBOR, none_hash(HashAlgorithm.XXHASH_CBOR, "0"))
SESSIONS = SessionList(["e"], SCHEME.fingerprint, u32s([8]), u32s([4]), ["xxhash_cbor"], [SCHEME.none_hash.hex()])
BODY = {"model": "tiny", "prompt": TEXT, "max_tokens": 3}


class World:
    def __init__(self, system: Routed, engines: list[ScriptedEngine], tiers: list[ScriptedTier], locator: Locator) -> None:
        self.system, self.engines, self.tiers, self.locator = system, engines, tiers, locator

    async def ask(self, **fields: object) -> int:
        """Which decode engine answered."""
        before = [len(engine.calls) for engine in self.engines]
        assert (await self.system.post(COMPLETIONS, BODY | fields)).status == 200
        after = [len(engine.calls) for engine in self.engines]
        (asked,) = [number for number, (was, now) in enumerate(zip(before, after, strict=True)) if now != was]
        return asked

    def locates(self, result: str) -> float:
        registry = self.system.parts.metrics.registry
        return registry.get_sample_value("pegaflow_router_locates_total", {"result": result}) or 0.0


@asynccontextmanager
async def patience() -> AsyncIterator[None]:
    """What a question to the metaserver may take is another test: a machine that stands still for a second fails none here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pegaflow.services.router.locator.BUDGET_S", 20.0)
        yield


@asynccontextmanager
async def world() -> AsyncIterator[tuple[World, MetaserverService]]:
    loop, factory = asyncio.get_running_loop(), SocketFactory()
    metaserver = MetaserverService(MetaserverConfig("m", ANY, ANY, ANY), Lifecycle("metaserver"), loop)
    metaserver.start()
    tiers = [ScriptedTier(factory, loop, f"node-{n}", n + 1, metaserver.requests_endpoint) for n in range(3)]
    for tier in tiers:
        tier.sessions = SESSIONS
    engines = [ScriptedEngine() for _ in range(3)]
    async with patience(), routed(ScriptedEngine(), *engines) as system:
        nodes = NodeEvents(metaserver.requests_endpoint, metaserver.events_endpoint, lambda count: None)
        told = {engine.url: f"node-{number}" for number, engine in enumerate(engines)}
        # Patience that no test uses up: how long a wait may be is another test.
        locator = Locator(metaserver.requests_endpoint, nodes, system.parts.engines, system.parts.metrics, told, 20.0)
        await nodes.start()
        await locator.start()
        system.parts.locator = locator
        await until(lambda: locator.schemes == {SCHEME} and len(nodes.up) == 3)
        try:
            yield World(system, engines, tiers, locator), metaserver
        finally:
            await locator.close()
            await nodes.close()
            for tier in tiers:
                tier.close()
            metaserver.close()
            factory.close()


def test_who_holds_most_of_the_prompt_gets_it() -> None:
    async def main() -> None:
        async with world() as (here, metaserver):
            keys = SCHEME.keys(text_ids(TEXT))
            assert len(keys) == len(TEXT) // 8
            assert [await here.ask() for _ in range(3)] == [0, 1, 2], "nobody holds anything: the longest idle one"
            assert here.locates("nowhere") == 3
            here.tiers[1].change(dict.fromkeys(keys, SEALED))
            here.tiers[2].change(dict.fromkeys(keys[:2], SEALED))
            await until(lambda: _sealed(metaserver) == len(keys) + 2)
            assert [await here.ask() for _ in range(4)] == [1, 1, 1, 1]
            assert here.locates("found") == 4
            assert [await here.ask(prompt="x" * 40) for _ in range(3)] == [0, 2, 1], "another prompt: by load, in turns"
            assert [await here.ask(cache_salt="s") for _ in range(3)] == [0, 2, 1], "a salted prompt has other keys"

    asyncio.run(main())


def test_a_busy_engine_is_left_alone_whatever_it_holds() -> None:
    async def main() -> None:
        async with world() as (here, metaserver):
            keys = SCHEME.keys(text_ids(TEXT))
            here.tiers[1].change(dict.fromkeys(keys, SEALED))
            await until(lambda: _sealed(metaserver) == len(keys))
            hanging = []
            for number in range(2):
                here.engines[1].disturb(hangs)
                hanging.append(asyncio.create_task(here.system.post(COMPLETIONS, BODY)))
                if number == 0:
                    await here.engines[1].calls_to_come(1)
            # One is open there, of a bound of one and a quarter times the average: the second went elsewhere.
            assert (await hanging[1]).status == 200
            assert len(here.engines[1].calls) == 1
            hanging[0].cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(main())


def test_a_metaserver_that_is_gone_costs_the_preference_only() -> None:
    async def main() -> None:
        async with world() as (here, metaserver):
            keys = SCHEME.keys(text_ids(TEXT))
            here.tiers[1].change(dict.fromkeys(keys, SEALED))
            await until(lambda: _sealed(metaserver) == len(keys))
            assert await here.ask() == 1
            metaserver.close()
            here.locator._wait = 0.001
            assert [await here.ask() for _ in range(3)] == [0, 2, 1]
            assert here.locates("late") >= 1

    asyncio.run(main())


def _sealed(metaserver: MetaserverService) -> int:
    return sum(node["sealed"] for node in metaserver.state.dump(0.0)["nodes"])
