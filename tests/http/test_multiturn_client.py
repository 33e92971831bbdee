"""The client of scripts/bench/multiturn, against engines that know one reply."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import NamedTuple

from aiohttp import web
from scripted_engine import REPLY, Call, ScriptedEngine

from bench.turns.client import Client
from bench.turns.heard import Heard
from bench.turns.shape import Shape

ANSWER = 3
SAID = [token for token, _ in REPLY[:ANSWER]]


class Talk(NamedTuple):
    shape: Shape

    def piece(self, session: int, turn: int) -> list[int]:
        return [100 * session + turn] * self.shape.piece(turn)


TALK = Talk(Shape(sessions=4, turns=3, first=5, growth=2, answer=ANSWER))


def converse(engines: list[ScriptedEngine], times: list[list[float]] | None = None) -> list[Heard]:
    async def main() -> list[Heard]:
        async with AsyncExitStack() as stack:
            urls = [(await stack.enter_async_context(engine.running())).url for engine in engines]
            client = await stack.enter_async_context(Client(urls, "tiny", ANSWER))
            return await client.converse(TALK, times)

    return asyncio.run(main())


def prompts(engine: ScriptedEngine, session: int) -> list[list[int]]:
    return [call.body["prompt"] for call in engine.calls if call.body["prompt"][0] == 100 * session]


def test_a_session_stays_at_its_engine_and_its_prompt_is_all_that_was_said() -> None:
    engines = [ScriptedEngine(), ScriptedEngine()]
    heard = converse(engines)
    assert [(one.session, one.turn, one.wrong(ANSWER)) for one in heard] == [(s, t, "") for s in range(4) for t in range(3)]
    for session in range(4):
        first = [100 * session] * 5
        second = [*first, *SAID, *[100 * session + 1] * 2]
        third = [*second, *SAID, *[100 * session + 2] * 2]
        assert prompts(engines[session % 2], session) == [first, second, third]
        assert prompts(engines[1 - session % 2], session) == []
    for one in heard:
        assert (one.prompt, list(one.ids)) == (TALK.shape.prompt(one.turn), SAID)
        assert one.sent < one.events[0][0] <= one.events[-1][0] <= one.ended
    body = engines[0].calls[0].body
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"], body["stream"]) == (ANSWER, 0, True, True)


def test_a_turn_waits_for_its_time_and_for_the_answer_before_it() -> None:
    """The second turn's time is over before the first one's has come."""
    started = time.monotonic()
    heard = converse([ScriptedEngine(), ScriptedEngine()], [[0.1, 0.0, 0.5]] * 4)
    for session in range(4):
        first, second, third = (one for one in heard if one.session == session)
        assert first.sent >= started + 0.099
        assert second.sent >= first.ended and second.late > 0
        assert third.sent >= max(started + 0.499, second.ended)


def test_a_failure_is_told_and_ends_its_session_only() -> None:
    async def fails(call: Call) -> web.Response:
        return web.json_response({"error": {"message": "no"}}, status=503)

    async def breaks(call: Call) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(call.request)
        await response.write(b"data: nonsense\n\n")
        return response

    engines = [ScriptedEngine(), ScriptedEngine()]
    engines[0].disturb(fails)
    engines[1].disturb(breaks)
    heard = converse(engines)
    bad = [one for one in heard if one.error]
    assert len(bad) == 2 and len(heard) == 2 + 2 * 3
    assert any(one.error.startswith("503") for one in bad) and any("JSONDecodeError" in one.error for one in bad)
    assert all(one.turn == 0 for one in bad)


def test_a_server_that_is_not_there_is_a_failure() -> None:
    async def main() -> Heard:
        engine = ScriptedEngine()
        async with engine.running():
            url = engine.url
        async with Client([url], "tiny", ANSWER) as client:
            return await client.ask(0, 0, [1])

    assert "ClientConnectorError" in asyncio.run(main()).error
