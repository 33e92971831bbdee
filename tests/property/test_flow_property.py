"""Any sequence of what engines and clients can do ends exactly once and gives everything back."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.openai import Endpoint, Json, parse_request
from pegaflow.services.router.plan import DecodeApi, FlowSettings, Mode, Resume, Unsplicable
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
    Pick,
    Picked,
    Release,
    Resumed,
    Role,
    Send,
    SendChunks,
    SendDone,
    SendError,
    Spent,
    StartStream,
    State,
    Wait,
    Woke,
)

bodies = st.fixed_dictionaries(
    {},
    optional={
        "stream": st.booleans(),
        "stream_options": st.fixed_dictionaries({"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}),
        "max_tokens": st.integers(-1, 6),
        "min_tokens": st.integers(0, 3),
        "stop": st.sampled_from(["ello", ["lo"], ["o", "ello w"]]),
        "include_stop_str_in_output": st.booleans(),
        "return_token_ids": st.booleans(),
        "temperature": st.sampled_from([0, 0, 1]),
        "seed": st.just(1),
        "logprobs": st.just(1),
        "n": st.integers(1, 2),
        "echo": st.booleans(),
    },
)
flow_settings = st.builds(
    FlowSettings,
    mode=st.sampled_from(Mode),
    decode_api=st.sampled_from(DecodeApi),
    unsplicable=st.sampled_from(Unsplicable),
    model_length=st.sampled_from([None, 4, 100]),
    retries=st.integers(0, 2),
    resume=st.sampled_from(Resume),
)
failed = st.builds(Failed, kind=st.sampled_from(FailureKind), text=st.just("x"))
finishes = st.sampled_from([None, None, None, "stop", "length", "abort", "error"])


def payload(text: str, finish: str | None, token: int | None, ids: bool, chat: bool, whole: bool) -> Json:
    choice: Json = {"index": 0, "finish_reason": finish}
    if token is not None:
        choice["token_ids"] = [token]
    shown: Json = {"id": "i", "created": 1, "model": "m", "choices": [choice]}
    if chat:
        choice["message" if whole else "delta"] = {"content": text}
        shown["prompt_token_ids"] = [1, 2, 3, 7] if ids else None
    else:
        choice["text"] = text
        choice["prompt_token_ids"] = [1, 2, 3] if ids else None
    if ids:
        shown["usage"] = {"prompt_tokens": 3, "completion_tokens": 2}
    return shown


payloads = st.builds(
    payload,
    text=st.sampled_from(["", "He", "l", "lo", "\ufffd"]),
    finish=finishes,
    token=st.sampled_from([None, 7]),
    ids=st.booleans(),
    chat=st.booleans(),
    whole=st.booleans(),
)
junk = st.sampled_from(["[DONE]", "{", "[]", "{}", '{"error":{"message":"x"}}', '{"choices":[]}', '{"choices":[1]}'])
frames = st.one_of(payloads.map(json.dumps), junk)
answers = st.builds(Answered, status=st.sampled_from([200, 200, 200, 400, 404, 429, 500, 503]), body=frames.map(str.encode))


class Shell:
    """Carries out commands the way the real one does, and keeps count."""

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.held: list[str] = []
        self.started = False
        self.role = Role.ENGINE
        self.prefilling = False
        self.leg: Send | None = None
        self.out: list[Command] = []
        self.due: type[Event] | Any = None

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            assert not self.out or not isinstance(self.out[-1], Finish), "nothing comes after Finish"
            match command:
                case Pick(role):
                    assert not self.held and self.leg is None
                    assert not self.started or role is Role.DECODE, "after a byte only another decode engine goes on"
                    self.due, self.role = Pick, role
                case Send():
                    assert self.held and self.leg is None
                    self.leg, self.due = command, Send
                    self.prefilling = self.role is Role.PREFILL
                case Cancel():
                    self.leg = None
                case Release(engine):
                    assert self.held == [engine], "released is what was picked"
                    self.held, self.leg = [], None
                case Wait():
                    assert not self.held
                    self.due = Wait
                case Resumed():
                    assert self.started and self.leg is not None and self.leg.stream
                case Learnt(engine):
                    assert self.held == [engine]
                case _:
                    self.started = self.started or isinstance(command, StartStream)
                    self.out.append(command)

    def check_output(self) -> None:
        """One answer or one stream, and its one end."""
        kinds = [type(command) for command in self.out if not isinstance(command, SendChunks)]
        assert kinds in (
            [Answer, Finish],
            [StartStream, SendDone, Finish],
            [StartStream, SendError, Finish],
            [StartStream, Finish],  # the client went away
            [Finish],
        ), kinds
        if StartStream in kinds:
            assert self.stream, "only a client that asked for it gets a stream"
            first = next(at for at, command in enumerate(self.out) if isinstance(command, SendChunks | SendDone | SendError))
            assert isinstance(self.out[first - 1], StartStream)


@settings(deadline=None, max_examples=300)
@given(st.data(), st.sampled_from(Endpoint), bodies, flow_settings)
def test_one_end_and_nothing_left(data: st.DataObject, endpoint: Endpoint, body: Json, chosen: FlowSettings) -> None:
    prompt: Json = {"messages": [{"role": "user", "content": "x"}]} if endpoint is Endpoint.CHAT else {"prompt": "x"}
    request = parse_request(endpoint, json.dumps(prompt | body).encode())
    flow, shell = Flow(request, chosen), Shell(request.stream)
    shell.take(flow.handle(Begin()))
    for _ in range(40):
        flow.validate()
        if flow.state is State.DONE:
            break
        event = data.draw(_possible(shell))
        # An engine of which it is not known whether it takes ids on chat may say by a 4xx that it does not.
        asking = not shell.prefilling and endpoint is Endpoint.CHAT and chosen.decode_api is DecodeApi.AUTO
        rejected = isinstance(event, Answered) and event.status in (400, 404) and not asking
        if isinstance(event, Picked):
            shell.held = [event.engine.name]
        shell.take(flow.handle(event))
        if rejected:
            assert isinstance(shell.out[-1], Finish), "a 4xx is never tried again"
    else:
        shell.take(flow.handle(Gone()))
    flow.validate()
    assert flow.state is State.DONE
    assert not shell.held
    assert shell.leg is None
    assert sum(isinstance(command, Finish) for command in shell.out) == 1
    shell.check_output()
    assert flow.handle(Gone()) == flow.handle(Ended()) == []


def _possible(shell: Shell) -> st.SearchStrategy[Event]:
    """What can happen now."""
    rare = st.sampled_from([Gone(), Expired()])
    match shell.due:
        case _ if shell.due is Pick:
            facts = st.builds(
                EngineFacts,
                name=st.sampled_from(["a", "b"]),
                chat_ids=st.sampled_from([None, True, False]),
                model_length=st.sampled_from([None, 4, 100]),
            )
            usual: st.SearchStrategy[Event] = st.one_of(st.builds(Picked, facts), st.builds(Picked, facts), st.just(NoEngine()))
        case _ if shell.due is Wait:
            usual = st.sampled_from([Woke(), Woke(), Spent()])
        case _:
            assert shell.leg is not None
            usual = st.one_of(answers, failed)
            if shell.leg.stream:
                some = st.builds(Frames, st.lists(frames, min_size=1, max_size=4))
                usual = st.one_of(some, some, usual, st.just(Ended()))
    return st.one_of(usual, usual, usual, usual, usual, rare)
