"""--pd-first-token over real sockets: the client cannot tell the router from one engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pegaflow.services.router.plan import DecodeApi, Unsplicable
from routed import Reply, Routed, routed
from scripted_engine import REPLY, Json, ScriptedEngine, text_ids

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "Say hello"}]


def bodies(path: str, **fields: Any) -> Json:
    return {"model": "tiny", **({"messages": MESSAGES} if path == CHAT else {"prompt": "Say hello"}), **fields}


def comparable(reply: Reply) -> Any:
    """What must agree with one engine alone: everything but the chunks' borders."""
    shown: Json = {"status": reply.status, "text": reply.text, "finish": reply.finish, "usage": reply.usage, "done": reply.done}
    parts = reply.chunks if reply.data else [reply.json]
    choices = [choice for part in parts for choice in part["choices"]]
    shown["ids"] = [token for choice in choices for token in choice.get("token_ids") or []]
    shown["prompt"] = next(
        (p for part in parts for p in [part.get("prompt_token_ids"), *(c.get("prompt_token_ids") for c in part["choices"])] if p),
        None,
    )
    shown["heads"] = {(part["id"], part["object"], part["created"], part["model"]) for part in parts}
    logprobs = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    names = sorted({name for one in logprobs for name in one})
    shown["logprobs"] = {name: [value for one in logprobs for value in one[name]] for name in names}
    return shown


FIELDS: list[Json] = [
    {},
    {"max_tokens": 2},
    {"max_tokens": 3},
    {"max_tokens": 100},
    {"max_tokens": 6, "min_tokens": 2},
    {"stop": ["ld"]},
    {"stop": "lo"},
    {"stop": ["Hello"]},
    {"stop": ["Hello"], "include_stop_str_in_output": True},
    {"stop": ["ello w"], "min_tokens": 2},
    {"stop": ["ello"], "min_tokens": 2},
    {"stop": ["ello"], "min_tokens": 4},
    {"stop": ["llo, you"]},
    {"stop": ["l", "ello"], "max_tokens": 20},
    {"stop": ["Hel"]},
    {"stop_token_ids": [1003]},
    {"stop_token_ids": [1001]},
    {"return_token_ids": True},
    {"return_token_ids": True, "stop": ["lo wö"]},
    {"logit_bias": {"5": 1}, "temperature": 0, "user": "me"},
    {"seed": 3},
    {"presence_penalty": 0.5},
    {"presence_penalty": 0, "n": 1},
    {"a_field_of_tomorrow": 1},
    {"max_tokens": 1},
    {"max_tokens": 1, "return_token_ids": True},
]


@pytest.mark.parametrize("api", list(DecodeApi))
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_answer_is_that_of_one_engine_alone(path: str, stream: bool, api: DecodeApi) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        # D has everything cached; the client is told what P had.
        prefill.cached_tokens, decode.cached_tokens = 3, 99
        async with routed(prefill, decode, pd_decode_api=api) as system:
            cases = [*FIELDS, {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}]
            cases += [{"logprobs": True, "stop": ["lo w"]} if path == CHAT else {"logprobs": 1, "stop": ["lo w"]}]
            for fields in cases:
                body = bodies(path, **fields, stream=stream)
                if stream:
                    body["stream_options"] = {"include_usage": True}
                alone = await system.post(path, body, url=prefill.url)
                seen = await system.post(path, body)
                assert comparable(seen) == comparable(alone), fields
                assert b"secret" not in seen.body
                assert b"kv_transfer_params" not in seen.body.replace(b'"kv_transfer_params":null', b"")
                if not fields.get("return_token_ids"):
                    assert b"prompt_token_ids" not in seen.body.replace(b'"prompt_token_ids":null', b"")
            system.assert_idle()
            assert system.count(outcome="ok") == len(cases)

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_each_engine_is_asked(path: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, pd_decode_api=DecodeApi.CHAT) as system:
            body = bodies(path, max_tokens=5, max_completion_tokens=5, min_tokens=3, temperature=0.5, stream=True)
            body |= {"stream_options": {"include_usage": True}, "kv_transfer_params": {"do_remote_prefill": True}}
            headers = {"Authorization": "Bearer t", "X-Request-Id": "r-1", "Cookie": "c=1"}
            reply = await system.post(path, body, headers=headers)
            assert reply.headers["x-pegaflow-plan"] == "splice"
            (asked,) = prefill.calls
            ids = await prompt_ids(system, prefill, path)
            assert asked.path == path
            assert asked.body["max_tokens"] == asked.body["max_completion_tokens"] == asked.body["min_tokens"] == 1
            assert asked.body["stream"] is False
            assert asked.body["return_token_ids"] is True
            assert "stream_options" not in asked.body
            assert asked.body["kv_transfer_params"] == {"pegaflow_ask_saved": True}
            (continued,) = decode.calls
            assert continued.path == path
            assert continued.body["temperature"] == 0.5
            assert (continued.body["max_tokens"], continued.body["min_tokens"]) == (4, 2)
            assert continued.body["stream_options"] == {"include_usage": True}
            if path == CHAT:
                kv = {"pegaflow_expected": True, "prompt_token_ids": [*ids, REPLY[0][0]]}
                assert continued.body["messages"] == MESSAGES
            else:
                kv = {"pegaflow_expected": True}
                assert continued.body["prompt"] == [*ids, REPLY[0][0]]
            assert continued.body["kv_transfer_params"] == kv
            for call in (asked, continued):
                assert call.request.headers["Authorization"] == "Bearer t"
                assert call.request.headers["X-Request-Id"] == "r-1"
                assert "Cookie" not in call.request.headers

    asyncio.run(main())


async def prompt_ids(system: Routed, engine: ScriptedEngine, path: str) -> list[int]:
    reply = await system.post(path, bodies(path, return_token_ids=True), url=engine.url)
    engine.calls.pop()
    found: list[int] = (reply.json if path == CHAT else reply.json["choices"][0])["prompt_token_ids"]
    return found


def test_chat_over_completions_sends_a_map_of_fields_and_an_explicit_limit() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine(model_length=128)
        async with routed(prefill, decode, pd_decode_api=DecodeApi.COMPLETIONS) as system:
            body = bodies(CHAT, temperature=0, top_p=0.5, chat_template_kwargs={"x": 1}, user="me", stop=["zzz"])
            reply = await system.post(CHAT, body)
            assert reply.text == "Hello wörld!"
            ids = await prompt_ids(system, prefill, CHAT)
            (call,) = decode.calls
            assert call.path == COMPLETIONS
            assert call.body == {
                "model": "tiny",
                "temperature": 0,
                "top_p": 0.5,
                "user": "me",
                "stop": ["zzz"],
                "prompt": [*ids, 1001],
                "max_tokens": 128 - len(ids) - 1,
                "stream": False,
                "kv_transfer_params": {"pegaflow_expected": True},
            }

    asyncio.run(main())


def test_auto_learns_that_an_engine_does_not_take_ids_on_chat() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine(chat_ids=False)
        async with routed(prefill, decode) as system:
            for stream in (True, False):
                reply = await system.post(CHAT, bodies(CHAT, stream=stream))
                assert reply.text == "Hello wörld!"
                assert reply.headers["x-pegaflow-plan"] == "splice"
            assert [call.path for call in decode.calls] == [CHAT, COMPLETIONS, COMPLETIONS]
            system.assert_idle()

    asyncio.run(main())


def test_auto_verifies_once_and_then_trusts() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            for _ in range(2):
                await system.post(CHAT, bodies(CHAT))
            assert [call.body.get("return_token_ids") for call in decode.calls] == [True, None]

    asyncio.run(main())


REPLAYED = [
    (COMPLETIONS, {"seed": 1}),
    (COMPLETIONS, {"frequency_penalty": 0.1}),
    (COMPLETIONS, {"repetition_penalty": 1.1}),
    (COMPLETIONS, {"bad_words": ["x"]}),
    (COMPLETIONS, {"echo": True}),
    (COMPLETIONS, {"truncate_prompt_tokens": 3}),
    (COMPLETIONS, {"vllm_xargs": {"a": 1}}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    (CHAT, {"response_format": {"type": "json_object"}}),
    (CHAT, {"structured_outputs": {"regex": "a"}}),
    (CHAT, {"thinking_token_budget": 5}),
    (CHAT, {"prompt_logprobs": 1}),
]


@pytest.mark.parametrize(("path", "fields"), REPLAYED)
def test_what_cannot_be_spliced_is_replayed_whole(path: str, fields: Json) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, pd_decode_api=DecodeApi.CHAT) as system:
            body = bodies(path, max_tokens=4, **fields)
            alone = await system.post(path, body, url=prefill.url)
            reply = await system.post(path, body)
            assert reply.headers["x-pegaflow-plan"] == "replay"
            assert (reply.text, reply.finish) == (alone.text, alone.finish)
            (call,) = decode.calls
            assert call.path == path
            assert call.body["max_tokens"] == 4
            kv = call.body["kv_transfer_params"]
            assert kv["pegaflow_expected"] is True
            if fields.get("echo"):
                assert call.body["prompt"] == body["prompt"]
            elif path == COMPLETIONS:
                sent = text_ids("Say hello")
                assert call.body["prompt"] == (sent[-3:] if "truncate_prompt_tokens" in fields else sent)
                assert "truncate_prompt_tokens" not in call.body
            else:
                assert kv["prompt_token_ids"] == text_ids("<user>Say hello")
            if "truncate_prompt_tokens" in fields:
                assert prefill.calls[-1].body["truncate_prompt_tokens"] == 3

    asyncio.run(main())


@pytest.mark.parametrize("first", [(1001, ""), (1001, "a\ufffd")])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_half_a_character_is_replayed(path: str, first: tuple[int, str]) -> None:
    async def main() -> None:
        reply = (first, *REPLY[1:])
        prefill, decode = ScriptedEngine(reply), ScriptedEngine(reply)
        async with routed(prefill, decode) as system:
            answer = await system.post(path, bodies(path, stream=True))
            assert answer.headers["x-pegaflow-plan"] == "replay"
            assert answer.text == first[1] + "lo wörld!"

    asyncio.run(main())


def test_strip_drops_chat_only_fields_and_continues_by_ids() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine(chat_ids=False)
        async with routed(prefill, decode, pd_unsplicable=Unsplicable.STRIP) as system:
            tools = [{"type": "function", "function": {"name": "f"}}]
            reply = await system.post(CHAT, bodies(CHAT, tools=tools, tool_choice="auto"))
            assert (reply.text, reply.headers["x-pegaflow-plan"]) == ("Hello wörld!", "splice")
            reply = await system.post(CHAT, bodies(CHAT, seed=4, logprobs=True))
            assert (reply.text, reply.headers["x-pegaflow-plan"]) == ("Hello wörld!", "replay")
            stripped, seeded = decode.calls
            assert stripped.path == seeded.path == COMPLETIONS
            assert not {"tools", "tool_choice", "logprobs"} & (stripped.body.keys() | seeded.body.keys())
            assert stripped.body["prompt"][-1] == 1001
            assert seeded.body["prompt"] == stripped.body["prompt"][:-1]
            assert seeded.body["seed"] == 4

    asyncio.run(main())


def test_reject_names_the_field() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode, pd_unsplicable=Unsplicable.REJECT) as system:
            reply = await system.post(COMPLETIONS, bodies(COMPLETIONS, seed=1))
            assert (reply.status, reply.json["error"]["param"]) == (400, "seed")
            assert not prefill.calls
            system.assert_idle()
            assert system.count(outcome="refused") == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"n": 2}, "n"),
        (COMPLETIONS, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [[1], [2]]}, "prompt"),
        (COMPLETIONS, {"use_beam_search": True}, "use_beam_search"),
        (COMPLETIONS, {"prompt_embeds": "x"}, "prompt_embeds"),
        (CHAT, {"stream": "yes"}, "stream"),
        (CHAT, {"max_tokens": "many"}, "max_tokens"),
        (CHAT, {"stop": 3}, "stop"),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_is_sent(path: str, fields: Json, param: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            reply = await system.post(path, {**bodies(path), **fields})
            assert (reply.status, reply.json["error"]["param"]) == (400, param)
            assert reply.json["error"]["type"] == "invalid_request_error"
            assert not prefill.calls + decode.calls
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("prompt", [[1, 2, 3], ["Say hello"], [[1, 2, 3]]])
def test_one_prompt_in_any_form_is_one_prompt(prompt: Any) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        flat = prompt if isinstance(prompt[0], int) else text_ids(prompt[0]) if isinstance(prompt[0], str) else prompt[0]

        async with routed(prefill, decode) as system:
            body = bodies(COMPLETIONS, prompt=prompt)

            # The stand-in reads one prompt; vLLM unpacks a list of one.
            async def unpack(call: Any) -> Any:
                call.body["prompt"] = flat
                return await prefill.answer(call)

            prefill.disturb(unpack)
            reply = await system.post(COMPLETIONS, body)
            assert reply.text == "Hello wörld!"
            assert decode.calls[0].body["prompt"] == [*flat, 1001]

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_p_alone_when_nothing_more_fits_or_comes(path: str, stream: bool) -> None:
    async def main() -> None:
        length = len(text_ids("Say hello" if path == COMPLETIONS else "<user>Say hello"))
        for fields, reply, model_length in (
            ({}, ((2, ""),), 256),
            ({"max_tokens": 5}, REPLY, length + 1),
            ({"stop": ["Hel"]}, REPLY, 256),
            ({"max_tokens": 1}, REPLY, 256),
        ):
            prefill = ScriptedEngine(reply, model_length=model_length)
            decode = ScriptedEngine(reply, model_length=model_length)
            async with routed(prefill, decode) as system:
                body = bodies(path, stream=stream, **fields)
                if stream:
                    body["stream_options"] = {"include_usage": True}
                alone = await system.post(path, body, url=prefill.url)
                seen = await system.post(path, body)
                assert comparable(seen) == comparable(alone)
                assert seen.headers["x-pegaflow-plan"] == "prefill"
                assert not decode.calls
                system.assert_idle()

    asyncio.run(main())


def test_max_tokens_0_with_echo_stays_0() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            reply = await system.post(COMPLETIONS, bodies(COMPLETIONS, max_tokens=0, echo=True))
            assert reply.text == "Say hello"
            assert prefill.calls[0].body["max_tokens"] == 0
            reply = await system.post(COMPLETIONS, bodies(COMPLETIONS, max_tokens=0))
            assert (reply.status, reply.json["error"]["message"]) == (400, "max_tokens must be at least 1")

    asyncio.run(main())


def test_a_prompt_of_100000_ids_is_one_long_line() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(model_length=1 << 20), ScriptedEngine(model_length=1 << 20)
        async with routed(prefill, decode) as system:
            ids = list(range(100_000, 200_000))
            reply = await system.post(COMPLETIONS, bodies(COMPLETIONS, prompt=ids, stream=True, return_token_ids=True))
            assert reply.text == "Hello wörld!"
            assert reply.chunks[0]["choices"][0]["prompt_token_ids"] == ids
            # Chat is checked for its ids, which D sends as one event.
            reply = await system.post(CHAT, {"messages": [{"role": "user", "content": "x" * 100_000}], "stream": True})
            assert reply.text == "Hello wörld!"
            assert len(reply.body) < 10_000

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_usage_in_a_stream_only_when_asked(path: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            reply = await system.post(path, bodies(path, stream=True))
            assert b"usage" not in reply.body
            body = bodies(path, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
            alone = await system.post(path, body, url=prefill.url)
            reply = await system.post(path, body)
            assert [chunk.get("usage") for chunk in reply.chunks] == [chunk.get("usage") for chunk in alone.chunks]

    asyncio.run(main())
