"""Whatever engines and clients do, after the drain nothing is in flight: over real sockets, by the metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.guard import ANYBODY
from routed import Routed, routed, until
from scripted_engine import Handler, Json, ScriptedEngine, answers, hangs, hangs_up, streams

BODY: Json = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}
ERROR = b'data: {"error": {"message": "x"}}\n\n'
GAUGES = ("pegaflow_router_in_flight_requests", "pegaflow_router_engine_legs", "pegaflow_router_key_requests")

acts = st.sampled_from(["well", "well", "400", "429", "500", "hangs", "hangs up"])
breaks = st.tuples(st.integers(0, 7), st.sampled_from(["", "error", "hangs", "hangs up"]))
requests = st.tuples(
    st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
    st.fixed_dictionaries(
        {"stream": st.booleans(), "n": st.sampled_from([1, 1, 1, 2]), "seed": st.sampled_from([None, None, 1])}
    ),
    st.one_of(st.none(), st.none(), st.integers(0, 40)),  # when its client leaves, in milliseconds, about
)


def handler(engine: ScriptedEngine, act: str | tuple[int, str]) -> Handler:
    simple: dict[str, Handler] = {"well": engine.answer, "hangs": hangs, "hangs up": hangs_up}
    if isinstance(act, str):
        return simple[act] if act in simple else answers(int(act))
    chunks, end = act
    return streams(engine, chunks=chunks, then=simple.get(end, {"": b"", "error": ERROR}.get(end, b"")))


async def client(system: Routed, path: str, body: Json, leaves: int | None) -> None:
    asking = asyncio.create_task(system.post(path, BODY | body))
    if leaves is not None:
        await asyncio.wait([asking], timeout=leaves / 1000)
        asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    if leaves is None:
        error = asking.exception()
        assert error is None or isinstance(error, aiohttp.ClientError)


def open_now(system: Routed) -> dict[tuple[str, Any], float]:
    """Every gauge that counts what is open, with its labels."""
    families = system.parts.metrics.registry.collect()
    found = [sample for family in families for sample in family.samples if sample.name in GAUGES]
    assert {sample.name for sample in found} == set(GAUGES)
    return {(sample.name, tuple(sample.labels.items())): sample.value for sample in found}


@settings(deadline=None, max_examples=15)
@given(
    mixed=st.booleans(),
    first_token=st.booleans(),
    limit=st.integers(0, 3),
    prefills=st.lists(acts, max_size=4),
    decodes=st.lists(st.one_of(acts, breaks), max_size=6),
    asked=st.lists(requests, min_size=1, max_size=6),
)
def test_nothing_is_in_flight_after_the_drain(
    mixed: bool, first_token: bool, limit: int, prefills: list[str], decodes: list[Any], asked: list[Any]
) -> None:
    async def main() -> None:
        first, second = ScriptedEngine(), ScriptedEngine()
        first.disturb(*(handler(first, act) for act in prefills))
        second.disturb(*(handler(second, act) for act in decodes))
        # No health check in between: it would show afresh what a release forgot to.
        limits = {"health_interval": 3600, "max_requests_per_key": limit}
        async with routed(first, second, mixed=mixed, first_token=first_token and not mixed, dead=(), **limits) as system:
            asking = [asyncio.create_task(client(system, *one)) for one in asked]
            await asyncio.wait(asking, timeout=0.3)
            while not all(task.done() for task in asking):
                system.app.expire()  # the drain deadline: what still hangs is ended
                await asyncio.wait(asking, timeout=0.05)
            await asyncio.gather(*asking)
            admission = system.app.guard.admission
            await until(lambda: not system.parts.exchanges and not admission.open(ANYBODY))
            assert not any(open_now(system).values()), open_now(system)
            system.assert_idle()
            admission.validate()

    asyncio.run(main())
