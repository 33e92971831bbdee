"""What scripts of a request's flow share: engines, answers, and the steps up to D's leg."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pegaflow.services.router.flow import Flow
from pegaflow.services.router.openai import Endpoint, Json, parse_request
from pegaflow.services.router.plan import DecodeApi, FlowSettings, Mode
from pegaflow.services.router.steps import (
    Answered,
    Begin,
    Command,
    EngineFacts,
    Event,
    Finish,
    Frames,
    Outcome,
    Picked,
    Send,
)
from streamed import frame

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
