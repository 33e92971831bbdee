"""A decode engine lost in the middle of a stream: another one goes on, and the client cannot tell."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from pegaflow.services.router.plan import Resume
from routed import Reply, routed
from scripted_engine import EOS, Call, Generation, Handler, Json, ScriptedEngine, answers, hangs_up, start_stream, streams

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
FRAME_ERROR = b'data: {"error": {"message": "Internal server error", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"
Script = tuple[tuple[int, str], ...]
HALF: Script = ((1001, "Hel"), (1002, ""), (1003, "ö"), (1004, " w"), (1005, ""), (1006, "€"), (EOS, ""))
FIRST_HALF: Script = ((1001, ""), (1002, "ö"), (1003, "x"), (1004, ""), (1005, "€"), (EOS, ""))
"""Ids without text are the first halves of characters."""


def body(path: str, **fields: Any) -> Json:
    prompt: Json = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    return {"model": "tiny", "stream": True, "temperature": 0, "stream_options": {"include_usage": True}, **prompt, **fields}


def seen(reply: Reply) -> Json:
    """What a client makes of a stream."""
    choices = [choice for chunk in reply.chunks for choice in chunk["choices"]]
    ids = [token for choice in choices for token in choice.get("token_ids") or []]
    if "delta" in choices[0]:
        logprobs: Any = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content") or []]
    else:
        lists = ("text_offset", "tokens", "token_logprobs")
        logprobs = {name: [one for choice in choices for one in (choice.get("logprobs") or {}).get(name) or []] for name in lists}
    return {
        "text": reply.text,
        "finish": reply.finish,
        "usage": reply.usage,
        "usages": sum("usage" in chunk for chunk in reply.chunks),
        "ids": ids,
        "logprobs": logprobs,
        "identities": {(chunk["id"], chunk["created"], chunk["model"]) for chunk in reply.chunks},
        "roles": [choice["delta"]["role"] for choice in choices if "role" in choice.get("delta", {})],
        "done": reply.done,
    }


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True}, {"logprobs": 1}, {"stop": ["rld", "zzz"]}, {"stop": "lo w"}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_client_cannot_tell(path: str, fields: Json) -> None:
    async def main() -> None:
        prefill, decode, other = ScriptedEngine(), ScriptedEngine(), ScriptedEngine()
        if path == CHAT and "logprobs" in fields:
            fields["logprobs"] = True
        async with routed(prefill, decode, other, breaker_failures=0, retry_ratio=9.0) as system:
            whole = seen(await system.post(path, body(path, **fields)))
            assert whole["done"] and whole["usage"]
            begun = 2 if path == CHAT else 1
            deaths: list[Handler | bytes] = [FRAME_ERROR, FRAME_ERROR + DONE, DONE, b"", b"data: [1]\n\n", hangs_up]
            for number, then in enumerate(deaths):
                for chunks in range(begun, begun + 3):
                    lives = iter((chunks, begun))

                    async def dies(call: Call) -> web.StreamResponse:
                        return await streams(decode, chunks=next(lives), then=then)(call)  # noqa: B023

                    for engine in (decode, other):
                        engine.disturb(dies)
                    reply = await system.post(path, body(path, **fields))
                    for engine in (decode, other):  # the stop string may have come before the second death
                        engine.undisturb()
                    assert seen(reply) == whole, (number, chunks)
                    system.assert_idle()
            assert system.value("pegaflow_router_resumptions_total") >= len(deaths)
            assert system.count(outcome="ok") == 1 + len(deaths) * 3

    asyncio.run(main())


def test_what_the_next_engine_is_asked() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            decode.disturb(streams(decode, chunks=2, then=hangs_up))
            reply = await system.post(COMPLETIONS, body(COMPLETIONS, max_tokens=9, min_tokens=4, stop="never"))
            assert reply.text == "Hello wörld!"
            first, second = (call.body for call in decode.calls)  # the only one there is may go on with its own
            assert second["prompt"] == [*first["prompt"], 1002, 1003]
            assert (first["max_tokens"], first["min_tokens"]) == (8, 3)
            assert (second["max_tokens"], second["min_tokens"]) == (6, 1)
            assert first["return_token_ids"] and second["return_token_ids"]
            assert "stop" not in first and "stop" not in second
            assert first["kv_transfer_params"] == {"pegaflow_expected": True}
            assert second["kv_transfer_params"] == {}

    asyncio.run(main())


@pytest.mark.parametrize("script", [HALF, FIRST_HALF])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_half_a_character_is_never_prompt(path: str, script: Script) -> None:
    async def main() -> None:
        engines = [ScriptedEngine(script) for _ in range(3)]
        async with routed(*engines) as system:
            whole = seen(await system.post(path, body(path)))
            for chunks in range(2, 6):
                for engine in engines[1:]:
                    engine.calls.clear()
                    engine.disturb(streams(engine, chunks=chunks, then=b""))
                assert seen(await system.post(path, body(path))) == whole
                asked = [call.body for engine in engines[1:] for call in engine.calls]
                for engine in engines[1:]:
                    engine.undisturb()
                prompts = [one.get("prompt") or one["kv_transfer_params"]["prompt_token_ids"] for one in asked]
                assert len(prompts) > 1
                halves = {token for token, text in script if not text}
                assert not halves & {prompt[-1] for prompt in prompts}

    asyncio.run(main())


def pairs(engine: ScriptedEngine, count: int) -> Handler:
    """A stream whose chunks hold two tokens each, `count` of them; then it breaks."""

    async def handler(call: Call) -> web.StreamResponse:
        response = await start_stream(call)
        single = [chunk for chunk in Generation(engine, call).chunks() if chunk["choices"]]
        for one, two in list(zip(single[::2], single[1::2], strict=False))[:count]:
            choice = dict(two["choices"][0])
            choice["text"] = one["choices"][0]["text"] + choice["text"]
            choice["token_ids"] = one["choices"][0]["token_ids"] + choice["token_ids"]
            await response.write(b"data: " + json.dumps({**two, "choices": [choice]}).encode() + b"\n\n")
        return response

    return handler


def test_chunks_of_several_tokens_are_said_again_and_not_shown_twice() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, pd_flow_retries=3) as system:
            for fields in ({}, {"return_token_ids": True}):
                whole = seen(await system.post(COMPLETIONS, body(COMPLETIONS, **fields)))
                decode.calls.clear()
                decode.disturb(pairs(decode, 2), pairs(decode, 1))
                assert seen(await system.post(COMPLETIONS, body(COMPLETIONS, **fields))) == whole
                # Where the text of two tokens ends is not certain: begun again behind P's token.
                assert len({tuple(call.body["prompt"]) for call in decode.calls}) == 1
                assert len(decode.calls) == 3

    asyncio.run(main())


def test_an_engine_that_says_something_else_does_not_go_on() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            liar = ScriptedEngine((*decode.reply[:1], (1002, "p"), (1003, " me"), (EOS, "")))
            decode.disturb(pairs(decode, 1), liar.answer)
            reply = await system.post(COMPLETIONS, body(COMPLETIONS))
            assert reply.text == "Hello wör"
            assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
            assert "something else" in reply.chunks[-1]["error"]["message"]
            assert len(decode.calls) == 2
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("option", "fields", "goes_on"),
    [
        ("greedy", {"temperature": 0.7}, False),
        ("greedy", {"temperature": None}, False),
        ("always", {"temperature": 0.7}, True),
        ("never", {}, False),
        ("always", {"seed": 1}, False),
        ("always", {"presence_penalty": 1}, False),
    ],
)
def test_which_streams_go_on(option: str, fields: Json, goes_on: bool) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, pd_resume=Resume(option)) as system:
            decode.disturb(streams(decode, chunks=2, then=hangs_up))
            reply = await system.post(COMPLETIONS, body(COMPLETIONS, **fields))
            assert reply.done is goes_on
            assert len(decode.calls) == 1 + goes_on
            assert len(prefill.calls) == 1
            if not goes_on:
                assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
                assert "return_token_ids" not in decode.calls[0].body
            system.assert_idle()

    asyncio.run(main())


def test_a_sampled_stream_goes_on_only_where_nothing_must_be_said_again() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, pd_resume=Resume.ALWAYS) as system:
            decode.disturb(pairs(decode, 1))
            reply = await system.post(COMPLETIONS, body(COMPLETIONS, temperature=1))
            assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
            assert len(decode.calls) == 1

    asyncio.run(main())


@pytest.mark.parametrize(("status", "asked"), [(400, 1), (422, 1), (500, 2), (503, 2), (429, 2)])
def test_what_the_next_engine_may_answer(status: int, asked: int) -> None:
    """A 4xx is not tried again; other answers are, `pd_flow_retries` times beyond the first."""

    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            decode.disturb(streams(decode, chunks=2, then=hangs_up), *[answers(status)] * 4)
            reply = await system.post(COMPLETIONS, body(COMPLETIONS))
            assert reply.status == 200
            assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
            assert not reply.done
            assert len(decode.calls) == 1 + asked
            assert system.count(outcome="interrupted") == 1
            system.assert_idle()

    asyncio.run(main())


def test_the_next_engine_takes_chats_in_another_way() -> None:
    async def main() -> None:
        prefill, decode, other = ScriptedEngine(), ScriptedEngine(), ScriptedEngine(chat_ids=False)
        async with routed(prefill, decode, other) as system:
            whole = seen(await system.post(CHAT, body(CHAT)))
            for engine in system.parts.engines.all():
                engine.chat_ids = None
            for one in (decode, other):
                one.calls.clear()
            decode.disturb(streams(decode, chunks=3, then=hangs_up))
            system.parts.engines.all()[2].load += 1  # so that `decode` is asked first
            reply = await system.post(CHAT, body(CHAT))
            system.parts.engines.all()[2].load -= 1
            assert seen(reply) == whole
            assert [call.path for call in decode.calls] == [CHAT]
            assert [call.path for call in other.calls] == [CHAT, COMPLETIONS]

    asyncio.run(main())


def test_the_client_goes_away_while_another_engine_goes_on() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()

        async def held(call: Call) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        decode.disturb(streams(decode, chunks=2, then=hangs_up), held)
        async with routed(prefill, decode) as system:
            async with system.session.post(system.url + COMPLETIONS, json=body(COMPLETIONS)) as response:
                await response.content.readany()
                await decode.calls_to_come(2)
                response.close()
            await decode.calls[1].gone.wait()
            while system.parts.exchanges:
                await asyncio.sleep(0)
            system.assert_idle()
            assert system.count(outcome="gone") == 1

    asyncio.run(main())


@pytest.mark.parametrize("extra", [{"reasoning": "hm"}, {"tool_calls": [{"index": 0, "id": "1"}]}])
def test_reasoning_and_tool_calls_are_never_said_again(extra: Json) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()

        async def thinks(call: Call) -> web.StreamResponse:
            response = await start_stream(call)
            for delta, ids in (({"content": "lo"}, [1002]), (extra, [1003])):
                choice = {"index": 0, "delta": delta, "token_ids": ids, "finish_reason": None}
                chunk = {"id": "c", "prompt_token_ids": call.body["kv_transfer_params"]["prompt_token_ids"], "choices": [choice]}
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            return response

        decode.disturb(thinks)
        async with routed(prefill, decode) as system:
            reply = await system.post(CHAT, body(CHAT))
            assert reply.chunks[-1]["error"]["code"] == "pd_decode_interrupted"
            assert len(decode.calls) == 1

    asyncio.run(main())
