"""Which engine gets a request, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

from pegaflow.services.router.policy import Policy
from routed import Routed, routed
from scripted_engine import Json, ScriptedEngine, hangs

COMPLETIONS = "/v1/completions"


def prompt(text: str, **fields: Any) -> Json:
    return {"model": "tiny", "prompt": text * 1000, "max_tokens": 3, **fields}


async def busy(system: Routed, engine: ScriptedEngine) -> asyncio.Task[Any]:
    """One request that hangs, at this engine; the engines must be picked in turns."""
    engine.disturb(hangs)
    before = len(engine.calls)
    task = asyncio.create_task(system.post(COMPLETIONS, prompt("busy")))
    await engine.calls_to_come(before + 1)
    return task


def test_the_least_loaded_gets_it() -> None:
    async def main() -> None:
        first, second = ScriptedEngine(model_length=9000), ScriptedEngine(model_length=9000)
        async with routed(first, second, mixed=True) as system:
            hanging = await busy(system, first)
            for _ in range(3):
                assert (await system.post(COMPLETIONS, prompt("x"))).status == 200
            assert (len(first.calls), len(second.calls)) == (1, 3)
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)

    asyncio.run(main())


def test_in_turns() -> None:
    async def main() -> None:
        first, second = ScriptedEngine(model_length=9000), ScriptedEngine(model_length=9000)
        async with routed(first, second, mixed=True, policy=Policy.ROUND_ROBIN) as system:
            hanging = await busy(system, first)
            for _ in range(4):
                assert (await system.post(COMPLETIONS, prompt("x"))).status == 200
            assert (len(first.calls), len(second.calls)) == (3, 2)
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)

    asyncio.run(main())


def test_prompts_that_begin_alike_meet_unless_that_engine_is_busy() -> None:
    async def main() -> None:
        first, second = ScriptedEngine(model_length=9000), ScriptedEngine(model_length=9000)
        async with routed(first, second, mixed=True, policy=Policy.PREFIX) as system:
            for text in ("x", "y"):  # one each, in turns
                await system.post(COMPLETIONS, prompt(text))
            for text in ("x", "x", "y", "x"):
                assert (await system.post(COMPLETIONS, prompt(text + text))).status == 200
            assert (len(first.calls), len(second.calls)) == (4, 2)
            first.disturb(hangs)
            hanging = [asyncio.create_task(system.post(COMPLETIONS, prompt("x")))]
            await first.calls_to_come(5)
            first.disturb(hangs)
            hanging.append(asyncio.create_task(system.post(COMPLETIONS, prompt("x"))))
            await first.calls_to_come(6)  # a second one still meets it there
            assert (await system.post(COMPLETIONS, prompt("x"))).status == 200
            assert len(second.calls) == 3, "the third finds it too busy"
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(main())
