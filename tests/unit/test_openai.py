"""Requests, errors and usage in OpenAI's shapes, and what each field means for a split."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pegaflow.services.router.fields import has_only_text, is_set, refuse_unsplittable, unsplicable
from pegaflow.services.router.openai import (
    MAX_DEPTH,
    ClientRequest,
    Endpoint,
    Json,
    Refused,
    dumps,
    error_body,
    error_in,
    frame,
    merged_usage,
    parse_request,
    speaks,
)

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS


def parsed(endpoint: Endpoint, **body: Any) -> ClientRequest:
    return parse_request(endpoint, json.dumps(body).encode())


def test_what_decides_is_read() -> None:
    request = parsed(
        CHAT, stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, min_tokens=2, stop="x"
    )
    assert (request.stream, request.include_usage, request.usage_in_every_chunk) == (True, True, True)
    assert (request.min_tokens, request.stops, request.want_token_ids) == (2, ("x",), False)
    assert parsed(CHAT, stream=None, stop=["", "a"], return_token_ids=True).stops == ("a",)


@pytest.mark.parametrize(
    ("endpoint", "body", "limit"),
    [
        (CHAT, {}, None),
        (COMPLETIONS, {}, 16),
        (COMPLETIONS, {"max_tokens": None}, 16),
        (COMPLETIONS, {"max_tokens": 0}, 0),
        (CHAT, {"max_tokens": 5}, 5),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 7),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": None}, 5),
        (COMPLETIONS, {"max_tokens": 5, "max_completion_tokens": 7}, 5),
        (CHAT, {"max_tokens": 5.0}, 5),
    ],
)
def test_limits_are_read_as_vllm_reads_them(endpoint: Endpoint, body: Json, limit: int | None) -> None:
    assert parsed(endpoint, **body).limit == limit


@pytest.mark.parametrize(
    "body",
    [
        {"stream": 1},
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"max_tokens": 5.5},
        {"min_tokens": []},
        {"stop": [1]},
        {"stream_options": 1},
        {"return_token_ids": "yes"},
    ],
)
def test_wrong_types_of_what_decides_are_refused_by_name(body: Json) -> None:
    with pytest.raises(Refused) as caught:
        parsed(CHAT, **body)
    assert caught.value.param == next(iter(body))
    assert caught.value.status == 400
    assert caught.value.body()["error"]["param"] == next(iter(body))


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_request(CHAT, raw)


def test_nesting_has_a_bound_that_is_not_pythons() -> None:
    def body(depth: int) -> bytes:
        return b'{"prompt": ' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert dumps(parse_request(COMPLETIONS, body(MAX_DEPTH)).body)
    with pytest.raises(Refused) as caught:
        parse_request(COMPLETIONS, body(MAX_DEPTH + 1))
    assert caught.value.code == "invalid_json"
    wide = b'{"messages": [' + b'{"content": []},' * 1000 + b"{}]}"
    assert len(parse_request(CHAT, wide).body["messages"]) == 1001


@pytest.mark.parametrize(
    ("chunk", "spoke"),
    [
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"reasoning": "a"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{}]}}]}, True),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"text": "", "finish_reason": "stop"}]}, False),
        ({"choices": [], "usage": {}}, False),
        ({"choices": None}, False),
        ({}, False),
    ],
)
def test_what_speaks(chunk: Json, spoke: bool) -> None:
    assert speaks(chunk) is spoke


def test_lone_surrogates_survive() -> None:
    request = parse_request(COMPLETIONS, b'{"prompt": "\\ud83d"}')
    assert dumps(request.body) == b'{"prompt":"\\ud83d"}'  # as UTF-8 it would be no JSON


def test_errors() -> None:
    body = error_body("m", "server_error", "c", "p")
    assert body == {"error": {"message": "m", "type": "server_error", "param": "p", "code": "c"}}
    assert error_in(body) == body["error"]
    old = {"object": "error", "message": "m"}
    assert error_in(old) == old
    assert error_in({"choices": [], "error": None}) is None
    assert error_in([]) is None
    assert frame({"a": "ö"}) == 'data: {"a":"ö"}\n\n'.encode()


def test_usage_has_the_prompt_of_p_and_the_completion_of_d() -> None:
    prefill = {"prompt_tokens": 50, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 32}}
    decode = {"prompt_tokens": 51, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 50}, "x": 1}
    assert merged_usage(prefill, decode, 1) == {
        "prompt_tokens": 50,
        "completion_tokens": 10,
        "total_tokens": 60,
        "prompt_tokens_details": {"cached_tokens": 32},
        "x": 1,
    }
    del prefill["prompt_tokens_details"]
    assert "prompt_tokens_details" not in merged_usage(prefill, decode, 1)


@pytest.mark.parametrize(
    ("name", "value", "set_"),
    [
        ("presence_penalty", 0, False),
        ("presence_penalty", 0.0, False),
        ("presence_penalty", -0.5, True),
        ("repetition_penalty", 1, False),
        ("repetition_penalty", 1.1, True),
        ("response_format", {"type": "text"}, False),
        ("response_format", {"type": "json_object"}, True),
        ("tools", [], False),
        ("tools", [{}], True),
        ("tool_choice", "none", False),
        ("tool_choice", "auto", True),
        ("echo", False, False),
        ("echo", True, True),
        ("logprobs", False, False),
        ("logprobs", True, True),
        ("logprobs", 0, True),
        ("top_logprobs", 0, False),
        ("seed", 0, True),
        ("seed", None, False),
        ("bad_words", [], False),
        ("unknown", 0, True),
        ("unknown", None, False),
    ],
)
def test_a_field_counts_only_when_it_asks_for_something(name: str, value: Any, set_: bool) -> None:
    assert is_set({name: value}, name) is set_


def test_only_known_harmless_fields_are_spliced() -> None:
    harmless = {"model": "m", "messages": [], "temperature": 0, "logit_bias": {"1": 2}, "stop": "x", "seed": None}
    assert unsplicable(CHAT, harmless) == ()
    assert unsplicable(CHAT, harmless | {"tomorrow": 1, "seed": 0}) == ("seed", "tomorrow")
    assert unsplicable(COMPLETIONS, {"prompt": "x", "suffix": "y"}) == ("suffix",)
    assert unsplicable(COMPLETIONS, {"prompt": "x", "messages": []}) == ()
    assert unsplicable(COMPLETIONS, {"prompt": "x", "tools": [{}]}) == ("tools",)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", True),
        (None, True),
        ([{"type": "text", "text": "a"}], True),
        (["a"], True),
        ([{"type": "image_url", "image_url": {"url": "x"}}], False),
        ([{"type": "text", "text": "a", "image_url": "x"}], False),
        ([{"text": "no type"}], False),
    ],
)
def test_messages_with_more_than_text_are_seen(content: Any, text: bool) -> None:
    assert has_only_text({"messages": [{"role": "user", "content": content}]}) is text
    assert has_only_text({"messages": "x"}) is False


@pytest.mark.parametrize("prompt", ["a", [1, 2], ["a"], [[1, 2]], []])
def test_one_prompt_may_be_split(prompt: Any) -> None:
    refuse_unsplittable(COMPLETIONS, {"prompt": prompt, "n": 1, "best_of": None})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(body: Json, param: str) -> None:
    with pytest.raises(Refused) as caught:
        refuse_unsplittable(COMPLETIONS, body)
    assert caught.value.param == param
