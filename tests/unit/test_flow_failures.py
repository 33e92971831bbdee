"""Failures of a request as scripts: what is tried again, what the client is told, what is given back."""

from __future__ import annotations

import json

import pytest
from flow_script import CHAT, COMPLETIONS, DONE, D, P, chunk, decided, flow, outcome, prefilled, run
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.openai import Json, parse_request
from pegaflow.services.router.plan import FlowSettings, Mode
from pegaflow.services.router.steps import (
    Answer,
    Answered,
    Begin,
    Cancel,
    Ended,
    EngineFacts,
    Event,
    Expired,
    Failed,
    FailureKind,
    Gone,
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
    State,
    Verdict,
    Wait,
    Woke,
)
from streamed import frame


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
