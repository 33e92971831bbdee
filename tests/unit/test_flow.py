"""The life of a request as scripts: events in, commands out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.openai import Endpoint, Json, parse_request
from pegaflow.services.router.plan import DecodeApi, FlowSettings, Mode, Unsplicable
from pegaflow.services.router.steps import (
    Answer,
    Answered,
    Begin,
    Cancel,
    Command,
    Ended,
    EngineFacts,
    Event,
    Expired,
    Failed,
    FailureKind,
    Finish,
    Frames,
    Gone,
    Learnt,
    NoEngine,
    Outcome,
    Pick,
    Picked,
    Plan,
    Release,
    Role,
    Send,
    SendChunks,
    SendDone,
    SendError,
    Spent,
    StartStream,
    State,
    Verdict,
    Wait,
    Woke,
)
from streamed import frame, read

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
P, D = EngineFacts("p", model_length=100), EngineFacts("d", model_length=100)
MESSAGES = [{"role": "user", "content": "hi"}]
FIRST_TOKEN = FlowSettings(Mode.FIRST_TOKEN, decode_api=DecodeApi.CHAT)


def flow(endpoint: Endpoint = COMPLETIONS, settings: FlowSettings = FIRST_TOKEN, **body: Any) -> Flow:
    body = ({"messages": MESSAGES} if endpoint is CHAT else {"prompt": "hi"}) | body
    return Flow(parse_request(endpoint, json.dumps(body).encode()), settings)


def run(machine: Flow, *events: Event) -> list[Command]:
    """The commands of the last event; the state is checked after each."""
    commands: list[Command] = []
    for event in events:
        commands = machine.handle(event)
        machine.validate()
    return commands


def prefilled(endpoint: Endpoint = COMPLETIONS, **choice: Any) -> Answered:
    """P's answer: prompt [1, 2, 3], t1 = 7 "He"."""
    payload: Json = {"id": "x", "created": 1, "model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    choice = {"index": 0, "token_ids": [7], "finish_reason": "length"} | choice
    if endpoint is CHAT:
        payload["prompt_token_ids"] = [1, 2, 3]
        choice = {"message": {"role": "assistant", "content": "He"}} | choice
    else:
        choice = {"text": "He", "prompt_token_ids": [1, 2, 3]} | choice
    return Answered(200, json.dumps(payload | {"choices": [choice]}).encode())


def chunk(text: str = "", finish: str | None = None, **more: Any) -> Frames:
    return frame(json.dumps({"id": "d", "choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}))


def decided(machine: Flow, answer: Answered | None = None, engine: EngineFacts = D) -> Send:
    """Up to D's leg."""
    answer = prefilled(machine.request.endpoint) if answer is None else answer
    (send,) = run(machine, Begin(), Picked(P), answer, Picked(engine))
    assert isinstance(send, Send)
    return send


def outcome(commands: Sequence[Command]) -> tuple[Outcome, str]:
    finish = commands[-1]
    assert isinstance(finish, Finish)
    return finish.outcome, finish.code


DONE = frame("[DONE]")


def test_a_streamed_splice_from_begin_to_done() -> None:
    machine = flow(stream=True, max_tokens=5)
    assert run(machine, Begin()) == [Pick(Role.PREFILL, frozenset())]
    (send,) = run(machine, Picked(P))
    assert isinstance(send, Send)
    assert send.body == {"prompt": "hi", "stream": False, "return_token_ids": True, "max_tokens": 1}
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


def test_p_fails_and_the_next_one_is_tried_after_a_pause() -> None:
    machine = flow()
    commands = run(machine, Begin(), Picked(P), Failed(FailureKind.UNREACHABLE, "refused"))
    assert commands == [Release("p", Verdict.DEAD), Wait(0.1)]
    assert run(machine, Woke()) == [Pick(Role.PREFILL, frozenset({"p"}))]
    commands = run(machine, Picked(EngineFacts("q")), Answered(503, b""))
    assert commands[0] == Release("q", Verdict.BAD)
    assert isinstance(commands[1], Answer)
    assert (commands[1].status, commands[1].retry_after) == (503, "1")
    assert outcome(commands) == (Outcome.FAILED, "pd_prefill_busy")


def test_pauses_grow_up_to_a_limit() -> None:
    machine = flow(settings=FlowSettings(Mode.FIRST_TOKEN, retries=7))
    run(machine, Begin())
    waits = []
    for _ in range(7):
        _, wait = run(machine, Picked(P), Answered(500, b""))
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
        run(machine, Woke())
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (FailureKind.UNREACHABLE, 502, "pd_decode_unreachable"),
        (FailureKind.TIMEOUT, 504, "pd_decode_timeout"),
        (FailureKind.FAILED, 502, "pd_decode_failed"),
    ],
)
def test_d_fails_for_good(kind: FailureKind, status: int, code: str) -> None:
    machine = flow(settings=FlowSettings(Mode.FIRST_TOKEN, retries=0))
    decided(machine)
    commands = run(machine, Failed(kind, "x"))
    answer = next(command for command in commands if isinstance(command, Answer))
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
    assert outcome(commands) == (Outcome.FAILED, code)


def test_d_failing_before_a_byte_repeats_the_whole_flow() -> None:
    machine = flow(stream=True)
    decided(machine)
    commands = run(machine, frame('{"error": {"message": "x"}}'))
    assert commands == [Cancel(), Release("d", Verdict.BAD), Wait(0.1)]
    assert run(machine, Woke()) == [Pick(Role.PREFILL, frozenset({"d"}))]
    assert run(machine, Picked(P), prefilled()) == [Release("p", Verdict.GOOD), Pick(Role.DECODE, frozenset({"d"}))]


@pytest.mark.parametrize(
    "event",
    [
        frame('{"error": {"message": "x"}}'),
        frame('{"object": "error", "message": "x"}'),
        chunk("", "abort"),
        frame("[DONE]"),
        frame("nonsense"),
        frame("[]"),
        frame('{"choices": [5]}'),
        Ended(),
        Failed(FailureKind.TIMEOUT, "idle"),
    ],
)
def test_d_dying_after_a_byte_is_an_error_frame_and_no_done(event: Event) -> None:
    machine = flow(stream=True)
    decided(machine)
    run(machine, chunk("llo"))
    commands = run(machine, event)
    assert not any(isinstance(command, SendDone | SendChunks) for command in commands)
    (error,) = [command for command in commands if isinstance(command, SendError)]
    assert error.body["error"]["code"] == "pd_decode_interrupted"
    assert outcome(commands) == (Outcome.INTERRUPTED, "pd_decode_interrupted")


def test_the_last_failure_is_told_when_nobody_is_left() -> None:
    machine = flow()
    run(machine, Begin(), Picked(P), Failed(FailureKind.TIMEOUT, "x"), Woke())
    assert outcome(run(machine, NoEngine())) == (Outcome.FAILED, "pd_prefill_timeout")
    machine = flow()
    run(machine, Begin())
    assert outcome(run(machine, NoEngine())) == (Outcome.FAILED, "pd_no_prefill_engine")


def test_a_4xx_goes_to_the_client_as_it_came() -> None:
    machine = flow()
    body = b'{"error": {"message": "m", "type": "BadRequestError", "param": null, "code": 422}}'
    commands = run(machine, Begin(), Picked(P), Answered(422, body))
    assert commands[:2] == [Release("p"), Answer(Plan.NONE, 422, body)]
    assert outcome(commands) == (Outcome.REJECTED, "422")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"text", {"message": "an engine answered 422: text"}),
        (b"<html>a proxy between</html>", {"message": "an engine answered 422"}),
        (b"x" * 1000, {"message": "an engine answered 422"}),
        (b"", {"message": "an engine answered 422"}),
        (b"\xff", {"message": "an engine answered 422: \ufffd"}),
        (b"[" * 5000, {"message": "an engine answered 422"}),
        (b"[1]", {"message": "an engine answered 422: [1]"}),
        (b'{"error": "Unauthorized"}', {"message": "Unauthorized"}),  # vLLM's own check of keys
        (b'{"detail": "Not Found"}', {"message": "Not Found"}),  # FastAPI
        (b'{"detail": [1]}', {"message": "an engine answered 422"}),
        (b'{"error": {"message": "m", "code": 7}}', {"message": "m", "code": 7}),
        (b'{"object": "error", "message": "m", "type": "T", "code": 4}', {"message": "m", "type": "T", "code": 4}),
    ],
)  # fmt: skip
def test_a_4xx_of_another_shape_gets_openais(body: bytes, error: Json) -> None:
    commands = run(flow(), Begin(), Picked(P), Answered(422, body, "text/html"))
    (answer,) = [command for command in commands if isinstance(command, Answer)]
    assert (answer.status, answer.content_type) == (422, "application/json")
    wanted = {"message": None, "type": "invalid_request_error", "param": None, "code": "engine_rejected"} | error
    assert json.loads(answer.body) == {"error": wanted}


def test_the_drain_deadline() -> None:
    machine = flow(stream=True)
    decided(machine)
    commands = run(machine, Expired())
    assert commands[:2] == [Cancel(), Release("d")]
    assert isinstance(commands[2], Answer)
    assert outcome(commands) == (Outcome.EXPIRED, "router_stopping")
    machine = flow(stream=True)
    decided(machine)
    run(machine, chunk("llo"))
    assert any(isinstance(command, SendError) for command in run(machine, Expired()))


def test_mixed_engines_need_no_prefill() -> None:
    machine = flow(settings=FlowSettings(Mode.MIXED), n=2)
    assert run(machine, Begin()) == [Pick(Role.ENGINE, frozenset())]
    (send,) = run(machine, Picked(EngineFacts("e")))
    assert isinstance(send, Send)
    assert send.body == {"prompt": "hi", "n": 2}


@pytest.mark.parametrize("body", [b'{"choices": [1]}', b'{"choices": 1}', b'{"choices": [{"message": 1}]}', b"[]", b"{"])
def test_an_answer_of_another_shape_is_a_broken_engine(body: bytes) -> None:
    machine = flow(CHAT, FlowSettings(Mode.MIXED, retries=0))
    *_, error, _ = run(machine, Begin(), Picked(D), Answered(200, body))
    assert isinstance(error, Answer) and error.status == 502
    assert machine.state is State.DONE


def test_an_event_out_of_place_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        flow().handle(Woke())
    machine = flow()
    run(machine, Begin())
    with pytest.raises(AssertionError):
        machine.handle(DONE)
    assert machine.state is State.PICK_PREFILL


def test_pauses_are_drawn_from_their_upper_half() -> None:
    drawn = iter([0.0, 0.5])
    request = parse_request(COMPLETIONS, b'{"prompt": "hi"}')
    machine = Flow(request, FlowSettings(Mode.FIRST_TOKEN, retries=2), lambda: next(drawn))
    _, first = run(machine, Begin(), Picked(P), Answered(500, b""))
    _, second = run(machine, Woke(), Picked(P), Answered(500, b""))
    assert (first, second) == (Wait(0.05), Wait(0.15000000000000002))


def test_without_a_retry_left_the_failure_is_the_answer() -> None:
    machine = flow()
    run(machine, Begin(), Picked(P), Answered(500, b""))
    assert outcome(run(machine, Spent())) == (Outcome.FAILED, "pd_prefill_failed")
    machine = flow(stream=True, temperature=0)
    decided(machine)
    run(machine, chunk("llo", token_ids=[8]))
    assert run(machine, Failed(FailureKind.UNREACHABLE, "x"))[-2:] == [
        Release("d", Verdict.DEAD),
        Wait(0.0, resumes=True),
    ]
    assert outcome(run(machine, Spent())) == (Outcome.INTERRUPTED, "pd_decode_interrupted")


@pytest.mark.parametrize(
    ("event", "verdict"),
    [
        (Answered(500, b""), Verdict.BAD),
        (Answered(503, b""), Verdict.BAD),
        (Answered(429, b""), Verdict.NOTHING),
        (Answered(408, b""), Verdict.NOTHING),
        (Answered(400, b""), Verdict.NOTHING),
        (Answered(200, b"{"), Verdict.BAD),
        (Failed(FailureKind.TIMEOUT, "x"), Verdict.BAD),
        (Failed(FailureKind.UNREACHABLE, "x"), Verdict.DEAD),
        (Gone(), Verdict.NOTHING),
        (Expired(), Verdict.NOTHING),
    ],
)
def test_what_an_ending_says_about_the_engine(event: Event, verdict: Verdict) -> None:
    machine = flow()
    run(machine, Begin(), Picked(P))
    assert Release("p", verdict) in run(machine, event)
    machine = flow()
    decided(machine)
    assert Release("d", verdict) in run(machine, event)
