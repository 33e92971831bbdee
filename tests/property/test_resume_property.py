"""Engines that die in the middle, again and again: the client's stream is that of one engine that did not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.router.flow import Flow
from pegaflow.services.router.openai import Endpoint, Json, parse_request
from pegaflow.services.router.plan import DecodeApi, FlowSettings, Mode, Resume
from pegaflow.services.router.steps import (
    Answered,
    Begin,
    Command,
    EngineFacts,
    Event,
    Failed,
    FailureKind,
    Finish,
    Frames,
    Outcome,
    Pick,
    Picked,
    Send,
    SendChunks,
    SendDone,
    SendError,
    State,
    Wait,
    Woke,
)
from streamed import read

PROMPT = [1, 2, 3]
EOS = 0
DEATH = Failed(FailureKind.FAILED, "killed")
pieces = st.sampled_from([b"a", b"b", b"ab", b"\xc3", b"\xb6", b"\xe2\x82", b"\xac", b" ", "ö".encode(), b"", b"\xff"])
scripts = st.lists(pieces, min_size=2, max_size=12)


def spoken(script: list[bytes], ids: list[int]) -> list[str]:
    """The text that each token adds, as an incremental decoder tells it: none while it ends in half a character."""
    texts, raw, told = [], b"", ""
    for token in ids:
        raw += script[token - 10] if token else b""
        whole = raw.decode(errors="replace")
        fresh = "" if whole.endswith("\ufffd") else whole[len(told) :]
        told += fresh
        texts.append(fresh)
    return texts


class Engine:
    """Says the script from where its prompt ends. It decodes from there: a half character in its prompt is lost."""

    def __init__(self, script: list[bytes], send: Send) -> None:
        body = send.body
        ids = body["prompt"] if send.endpoint is Endpoint.COMPLETIONS else body["kv_transfer_params"]["prompt_token_ids"]
        assert ids[:3] == PROMPT and ids[3:] == [10 + at for at in range(len(ids) - 3)]
        assert "stop" not in body and body["return_token_ids"]
        left = [10 + at for at in range(len(ids) - 3, len(script))] + [EOS]
        limit = body.get("max_tokens")
        assert limit is None or limit > 0
        assert body.get("min_tokens", 0) <= (limit or 99)
        self.ids = left[:limit]
        self.finish = "stop" if len(self.ids) == len(left) else "length"
        self.texts = spoken(script, self.ids)
        self.chat = send.endpoint is Endpoint.CHAT

    def frames(self, sizes: list[int]) -> list[str]:
        head: Json = {"id": "d", "created": 9, "model": "m"}
        made: list[Json] = []
        if self.chat:
            made.append({**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        at = 0
        while at < len(self.ids):
            size = sizes[len(made) % len(sizes)]
            ids, text = self.ids[at : at + size], "".join(self.texts[at : at + size])
            at += size
            choice: Json = {"index": 0} | ({"delta": {"content": text}} if self.chat else {"text": text})
            choice |= {"finish_reason": self.finish if at >= len(self.ids) else None, "token_ids": ids}
            made.append({**head, "choices": [choice]})
        made.append({**head, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(self.ids)}})
        return [json.dumps(one) for one in made] + ["[DONE]"]


def wanted(script: list[bytes], body: Json) -> tuple[str, list[int], str]:
    """Text, ids and finish reason by one engine alone."""
    ids = [10 + at for at in range(len(script))] + [EOS]
    limit = body.get("max_tokens", 99)
    stop, least, text = body.get("stop"), body.get("min_tokens", 0), ""
    for count, piece in enumerate(spoken(script, ids), start=1):
        before = len(text)
        text += piece
        if stop and piece and count > least and (at := text.find(stop, max(0, before + 1 - len(stop)))) >= 0:
            return text[:at], ids[:count], "stop"
        if count == limit:
            return text, ids[:count], "stop" if count == len(ids) else "length"
    return text, ids, "stop"


bodies = st.fixed_dictionaries(
    {"stream": st.just(True)},
    optional={
        "max_tokens": st.integers(2, 12),
        "min_tokens": st.integers(0, 2),
        "stop": st.sampled_from(["b", "ab", "aa", "ö", "b ", "a€"]),
        "return_token_ids": st.booleans(),
    },
)


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(Endpoint), scripts, bodies, st.sampled_from(DecodeApi), st.booleans())
def test_a_stream_that_engines_share_is_the_stream_of_one(
    data: st.DataObject, endpoint: Endpoint, script: list[bytes], body: Json, api: DecodeApi, greedy: bool
) -> None:
    coalesces = data.draw(st.booleans())
    if coalesces:
        body.pop("stop", None)  # they are searched token by token
    text, ids, finish = wanted(script, body)
    body |= {"temperature": 0 if greedy else 1, "stream_options": {"include_usage": True}}
    prompt: Json = {"messages": [{"role": "user", "content": "x"}]} if endpoint is Endpoint.CHAT else {"prompt": "x"}
    if endpoint is Endpoint.COMPLETIONS:
        body.setdefault("max_tokens", 50)
    request = parse_request(endpoint, json.dumps(prompt | body).encode())
    flow = Flow(request, FlowSettings(Mode.FIRST_TOKEN, decode_api=api, retries=1, resume=Resume.ALWAYS))
    sent: list[Command] = []
    event: Event = Begin()

    def come(frames: list[str]) -> list[str]:
        """At once."""
        now = data.draw(st.integers(1, min(3, len(frames))), label="at once")
        came, frames[:now] = frames[:now], []
        return came

    frames: list[str] = []  # what is left to come of the open stream, before its engine dies
    while flow.state is not State.DONE:
        out = flow.handle(event)
        flow.validate()
        sent += out
        match next((command for command in reversed(out) if isinstance(command, Send | Pick | Wait)), None):
            case Send() if flow.state is State.PREFILL:
                event = _first(endpoint, script, flow)
            case Send() as send:
                sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)) if coalesces else [1]
                frames = Engine(script, send).frames(sizes)
                frames = frames[: data.draw(st.integers(0, len(frames)), label="lives")]
                event = Frames(come(frames)) if frames else DEATH
            case Pick():
                event = Picked(EngineFacts("e", chat_ids=True, model_length=200))
            case Wait():
                event = Woke()
            case _:
                event = Frames(come(frames)) if frames else DEATH
    _compare(sent, request.want_token_ids, text, ids, finish)


def _first(endpoint: Endpoint, script: list[bytes], flow: Flow) -> Answered:
    text = spoken(script, [10])[0]
    stopped = any(stop in text for stop in flow.request.stops) and flow.request.min_tokens < 1
    if stopped:
        text = text[: text.find(flow.request.stops[0])]
    choice: Json = {"index": 0, "token_ids": [10], "finish_reason": "stop" if stopped else "length"}
    payload: Json = {"id": "p", "created": 1, "model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
    if endpoint is Endpoint.CHAT:
        payload["prompt_token_ids"] = PROMPT
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice |= {"text": text, "prompt_token_ids": PROMPT}
    return Answered(200, json.dumps(payload | {"choices": [choice]}).encode())


def _compare(sent: list[Command], ids_shown: bool, text: str, ids: list[int], finish: str) -> None:
    chunks: list[Json] = [chunk for command in sent if isinstance(command, SendChunks) for chunk in read(command.chunks)]
    choices: list[Any] = [choice for chunk in chunks for choice in chunk["choices"]]
    got = "".join((choice["delta"].get("content") or "") if "delta" in choice else choice["text"] for choice in choices)
    tokens = [token for choice in choices for token in choice.get("token_ids") or []]
    end = sent[-1]
    assert isinstance(end, Finish)
    if any(isinstance(command, SendDone) for command in sent):
        assert end.outcome is Outcome.OK
        assert got == text
        assert [choice["finish_reason"] for choice in choices if choice.get("finish_reason")] == [finish]
        assert [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk] == [len(ids)]
        assert not ids_shown or tokens == ids
        assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {("p", 1)}
    else:
        # Nothing wrong was said before it broke off.
        assert text.startswith(got)
        assert tokens == (ids[: len(tokens)] if ids_shown else [])
        assert end.outcome in (Outcome.INTERRUPTED, Outcome.FAILED)
        assert any(isinstance(command, SendError) for command in sent) or end.outcome is Outcome.FAILED
