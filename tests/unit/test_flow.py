"""The life of a request as scripts: events in, commands out. What goes wrong on the way is in test_flow_failures.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flow_script import CHAT, COMPLETIONS, DONE, FIRST_TOKEN, D, P, chunk, decided, flow, outcome, prefilled, run
from pegaflow.services.router.openai import Endpoint, Json
from pegaflow.services.router.plan import DecodeApi, FlowSettings, Mode, Unsplicable, choose
from pegaflow.services.router.prefill import read_prefill
from pegaflow.services.router.steps import (
    Answer,
    Answered,
    Begin,
    Cancel,
    EngineFacts,
    Finish,
    Gone,
    Learnt,
    Outcome,
    Pick,
    Picked,
    Plan,
    Release,
    Role,
    Send,
    SendChunks,
    SendDone,
    StartStream,
    Verdict,
)
from streamed import frame, read


def test_a_streamed_splice_from_begin_to_done() -> None:
    machine = flow(stream=True, max_tokens=5)
    assert run(machine, Begin()) == [Pick(Role.PREFILL, frozenset())]
    (send,) = run(machine, Picked(P))
    assert isinstance(send, Send)
    asked = {"kv_transfer_params": {"pegaflow_ask_saved": True}}
    assert send.body == {"prompt": "hi", "stream": False, "return_token_ids": True, "max_tokens": 1} | asked
    assert run(machine, prefilled()) == [Release("p", Verdict.GOOD), Pick(Role.DECODE, frozenset())]
    (send,) = run(machine, Picked(D))
    assert isinstance(send, Send)
    assert send.body == {
        "prompt": [1, 2, 3, 7],
        "stream": True,
        "max_tokens": 4,
        "kv_transfer_params": {"pegaflow_expected": True},
    }
    start, first = run(machine, chunk("llo"))
    assert start == StartStream(Plan.SPLICE)
    assert isinstance(first, SendChunks)
    assert [one["choices"][0]["text"] for one in read(first.chunks)] == ["He", "llo"]
    assert {one["id"] for one in read(first.chunks)} == {"x"}
    (last,) = run(machine, chunk("!", "stop"))
    assert isinstance(last, SendChunks)
    assert run(machine, DONE) == [Cancel(), Release("d", Verdict.GOOD), SendDone(), Finish(Plan.SPLICE, Outcome.OK, "200")]
    assert run(machine, Gone()) == []


def test_the_first_byte_waits_for_the_first_token() -> None:
    machine = flow(CHAT, stream=True)
    decided(machine)
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    assert run(machine, frame(json.dumps(role))) == []
    token = {"choices": [{"index": 0, "delta": {"content": "llo"}, "finish_reason": None}]}
    start, chunks = run(machine, frame(json.dumps(token)))
    assert isinstance(start, StartStream)
    assert isinstance(chunks, SendChunks)
    assert [one["choices"][0]["delta"] for one in read(chunks.chunks)] == [
        {"role": "assistant", "content": ""},
        {"content": "He"},
        {"content": "llo"},
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"min_tokens": 3}, 1),
        ({"min_tokens": 0}, 0),
        ({}, None),
    ],
)
def test_min_tokens_for_p(body: Json, expected: int | None) -> None:
    (send,) = run(flow(max_tokens=9, **body), Begin(), Picked(P))
    assert isinstance(send, Send)
    assert send.body.get("min_tokens") == expected


def test_both_limits_are_rewritten_on_p_and_d() -> None:
    machine = flow(CHAT, max_tokens=5, max_completion_tokens=9, min_tokens=4)
    (send,) = run(machine, Begin(), Picked(P))
    assert isinstance(send, Send)
    assert (send.body["max_tokens"], send.body["max_completion_tokens"]) == (1, 1)
    (send,) = run(machine, prefilled(CHAT), Picked(D))[-1:]
    assert isinstance(send, Send)
    assert (send.body["max_tokens"], send.body["max_completion_tokens"], send.body["min_tokens"]) == (8, 8, 3)


@pytest.mark.parametrize(
    "body",
    [{"max_tokens": 1}, {"max_tokens": 0, "echo": True}, {"max_tokens": -3}, {"max_tokens": 2, "min_tokens": 3}],
)
def test_p_alone_gets_the_clients_own_request(body: Json) -> None:
    machine = flow(**body, kv_transfer_params={"x": 1})
    assert run(machine, Begin()) == [Pick(Role.PREFILL, frozenset())]
    (send,) = run(machine, Picked(P))
    assert isinstance(send, Send)
    assert send.body == {"prompt": "hi", **body}


def test_a_limit_above_the_models_length_is_left_to_the_engine_to_refuse() -> None:
    (send,) = run(flow(max_tokens=101), Begin(), Picked(P))
    assert isinstance(send, Send)
    assert send.body["max_tokens"] == 101


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        (prefilled(finish_reason="stop", text=""), 100),
        (prefilled(finish_reason="stop", stop_reason="e", text="H"), 100),
        (prefilled(), 4),
    ],
)
def test_p_alone_when_its_token_is_all(answer: Answered, length: int) -> None:
    machine = flow(stream=True, max_tokens=4)
    commands = run(machine, Begin(), Picked(EngineFacts("p", model_length=length)), answer)
    assert commands[:2] == [Release("p", Verdict.GOOD), StartStream(Plan.PREFILL)]
    assert commands[-2:] == [SendDone(), Finish(Plan.PREFILL, Outcome.OK, "200")]


@pytest.mark.parametrize(
    "answer",
    [
        prefilled(text=""),
        prefilled(text="\ufffd"),
        prefilled(token_ids=None),
        prefilled(token_ids=[7, 8]),
        prefilled(prompt_token_ids=None),
    ],
)
def test_a_first_token_that_cannot_be_forwarded_is_replayed(answer: Answered) -> None:
    machine = flow(max_tokens=5, min_tokens=2)
    send = decided(machine, answer)
    assert machine.plan is Plan.REPLAY
    assert (send.body["max_tokens"], send.body["min_tokens"]) == (5, 2)
    ids = json.loads(answer.body)["choices"][0]["prompt_token_ids"]
    assert send.body["prompt"] == (ids or "hi")


@pytest.mark.parametrize("extra", [{"reasoning": "hm"}, {"tool_calls": [{"id": "1"}]}])
def test_reasoning_and_tool_calls_are_replayed(extra: Json) -> None:
    machine = flow(CHAT)
    decided(machine, prefilled(CHAT, message={"role": "assistant", "content": "He", **extra}))
    assert machine.plan is Plan.REPLAY


def test_images_are_replayed_without_ids() -> None:
    content = [{"type": "image_url", "image_url": {"url": "x"}}]
    send = decided(flow(CHAT, messages=[{"role": "user", "content": content}]))
    assert send.body["kv_transfer_params"] == {"pegaflow_expected": True}


def test_chat_by_completions_without_a_known_length_is_replayed() -> None:
    settings = FlowSettings(Mode.FIRST_TOKEN, decode_api=DecodeApi.COMPLETIONS)
    assert decided(flow(CHAT, settings), engine=EngineFacts("d")).endpoint is CHAT
    send = decided(flow(CHAT, settings), engine=D)
    assert (send.endpoint, send.body["max_tokens"]) == (COMPLETIONS, 96)


def test_chat_logprobs_are_spliced_on_chat_and_replayed_by_completions() -> None:
    for api, plan in ((DecodeApi.CHAT, Plan.SPLICE), (DecodeApi.COMPLETIONS, Plan.REPLAY)):
        machine = flow(CHAT, FlowSettings(Mode.FIRST_TOKEN, decode_api=api), logprobs=True)
        assert decided(machine).endpoint is CHAT
        assert machine.plan is plan


def test_reject_where_only_the_engine_decides() -> None:
    settings = FlowSettings(Mode.FIRST_TOKEN, unsplicable=Unsplicable.REJECT)
    machine = flow(CHAT, settings, logprobs=True)
    commands = run(machine, Begin(), Picked(P), prefilled(CHAT), Picked(EngineFacts("d", chat_ids=False)))
    assert commands[0] == Release("d")
    assert outcome(commands) == (Outcome.REFUSED, "unsupported_value")


def test_ids_on_chat_are_verified_and_the_other_way_is_taken_at_once() -> None:
    settings = FlowSettings(Mode.FIRST_TOKEN)
    machine = flow(CHAT, settings, stream=True)
    assert decided(machine).body["return_token_ids"] is True
    role: Json = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    cancel, learnt, send = run(machine, frame(json.dumps(role | {"prompt_token_ids": [9, 9]})))
    assert (cancel, learnt) == (Cancel(), Learnt("d", False))
    assert isinstance(send, Send)
    assert send.endpoint is COMPLETIONS
    # Seen to be taken: remembered, and not shown to the client.
    machine = flow(CHAT, settings, stream=True)
    decided(machine)
    assert run(machine, frame(json.dumps(role | {"prompt_token_ids": [1, 2, 3, 7]}))) == [Learnt("d", True)]


def test_a_stop_string_across_the_seam_ends_the_answer() -> None:
    machine = flow(stream=True, stop=["ello"], stream_options={"include_usage": True})
    send = decided(machine)
    assert "stop" not in send.body
    commands = run(machine, chunk("l"), chunk("lo wo"))
    cancel, release, usage, done, _ = commands[-5:]
    assert (cancel, release, done) == (Cancel(), Release("d", Verdict.GOOD), SendDone())
    assert isinstance(usage, SendChunks)
    assert read(usage.chunks)[0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert outcome(commands) == (Outcome.OK, "200")


def test_a_stop_string_across_the_seam_without_streaming() -> None:
    machine = flow(stop=["ello"])
    send = decided(machine)
    assert send.stream is True
    commands = run(machine, chunk("l"), chunk("lo wo"))
    answer = next(command for command in commands if isinstance(command, Answer))
    payload = json.loads(answer.body)
    assert payload["choices"][0]["text"] == "H"
    assert payload["choices"][0]["stop_reason"] == "ello"
    assert payload["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("said", "waits"), [({"pegaflow_saved": True}, True), ({"pegaflow_saved": False}, False), (None, True), ("?", True)]
)
@pytest.mark.parametrize("more", [{}, {"seed": 1}])
def test_d_waits_only_for_pages_that_p_may_have_saved(endpoint: Endpoint, said: Any, waits: bool, more: Json) -> None:
    machine = flow(endpoint, max_tokens=5, **more)
    payload = json.loads(prefilled(endpoint).body) | {"kv_transfer_params": said}
    send = decided(machine, Answered(200, json.dumps(payload).encode()))
    assert send.body["kv_transfer_params"].get("pegaflow_expected", False) is waits


def test_what_p_says_of_its_pages_counts_where_it_says_nothing_of_ids() -> None:
    body = {
        "choices": [{"index": 0, "text": "a", "finish_reason": "length", "token_ids": [5]}],
        "kv_transfer_params": {"pegaflow_saved": False},
    }
    chosen = choose(flow().request, read_prefill(COMPLETIONS, body), D, FIRST_TOKEN, no_chat_ids=False)
    assert (chosen.plan, chosen.leg.body["kv_transfer_params"]) == (Plan.REPLAY, {})


@pytest.mark.parametrize(("told", "params"), [({"pegaflow_saved": False}, {}), (None, {"pegaflow_expected": True})])
def test_without_first_tokens_d_waits_for_what_p_saved_and_for_nothing_else(told: Json | None, params: Json) -> None:
    machine = flow(settings=FlowSettings(Mode.PREFILL_DECODE))
    asked = run(machine, Begin(), Picked(P))
    (sent,) = [command for command in asked if isinstance(command, Send)]
    assert sent.body["kv_transfer_params"] == {"pegaflow_ask_saved": True} and "return_token_ids" not in sent.body
    run(machine, Answered(200, json.dumps({"choices": [], "kv_transfer_params": told}).encode()))
    (sent,) = [command for command in run(machine, Picked(D)) if isinstance(command, Send)]
    assert sent.body["kv_transfer_params"] == params
