"""Whole answers, for clients that do not stream: one engine's, P's and D's as one, or a stream's chunks gathered."""

from __future__ import annotations

from typing import Any, Final

from pegaflow.services.router.decode import DecodeLeg
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json, merged_usage
from pegaflow.services.router.prefill import Malformed, PrefillAnswer
from pegaflow.services.router.shapes import IDS, INTERNAL, identity, joined_logprobs

_OBJECTS: Final = {Endpoint.CHAT: "chat.completion", Endpoint.COMPLETIONS: "text_completion"}


class Collector:
    """Gathers a client's chunks into the answer of a client that does not stream, in the shape of P's."""

    def __init__(self, request: ClientRequest, answer: PrefillAnswer) -> None:
        self._request, self._answer = request, answer
        self._head: Json = {}
        self._text: list[str] = []
        self._role = "assistant"
        self._logprobs: Json | None = None
        self._ids: list[int] = []
        self._finish: Json = {"finish_reason": None, "stop_reason": None}
        self._prompt_ids: list[int] | None = None
        self._usage: Json | None = None

    def add(self, chunk: Json) -> None:
        self._head |= {name: value for name, value in chunk.items() if name not in ("choices", "usage", "prompt_token_ids")}
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            delta = choice.get("delta", {})
            self._role = delta.get("role") or self._role
            self._text.append(choice.get("text") or delta.get("content") or "")
            self._ids += choice.get("token_ids") or []
            self._prompt_ids = choice.get("prompt_token_ids") or self._prompt_ids
            self._logprobs = joined_logprobs(self._request.endpoint, self._logprobs, choice.get("logprobs"))
            if choice.get("finish_reason") is not None:
                self._finish = {name: choice.get(name) for name in ("finish_reason", "stop_reason")}

    def answer(self, usage: Json) -> Json:
        """`usage`: what to say where no chunk carried any."""
        text = "".join(self._text)
        whole, choice = _shape(self._request, self._answer)
        if self._request.endpoint is Endpoint.CHAT:
            choice["message"] |= {"role": self._role, "content": text}
        else:
            choice["text"] = text
        choice |= {"logprobs": self._logprobs, **self._finish}
        if self._request.want_token_ids:
            choice["token_ids"] = self._ids
        return {
            **whole,
            **self._head,
            "object": _OBJECTS[self._request.endpoint],
            "choices": [choice],
            "usage": {**whole.get("usage", {}), **(self._usage or usage)},
        }


def merge_answers(request: ClientRequest, answer: PrefillAnswer, leg: DecodeLeg, payload: Any) -> Json:
    """P's and D's answers of a request that does not stream, as one. Raises Malformed when D's is none."""
    try:
        theirs = payload["choices"][0]
        text = theirs["text"] if leg.endpoint is Endpoint.COMPLETIONS else theirs["message"].get("content")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise Malformed(f"no choice in D's answer: {error!r}") from None
    first = answer.text if leg.forwarded else ""
    whole = first + (text or "")
    merged, choice = _shape(request, answer)
    if not leg.reshape:
        merged = {name: None if name in INTERNAL else value for name, value in payload.items()}
        choice = dict(theirs)
    elif "system_fingerprint" in payload:
        merged["system_fingerprint"] = payload["system_fingerprint"]
    choice["index"] = 0
    if request.endpoint is Endpoint.CHAT:
        message = dict(choice["message"])
        message["role"] = answer.choice["message"].get("role") or "assistant"
        message["content"] = whole
        choice["message"] = message
        choice.setdefault("logprobs", None)
    else:
        choice["text"] = whole
    if leg.forwarded and not leg.reshape:
        choice["logprobs"] = joined_logprobs(request.endpoint, answer.choice.get("logprobs"), theirs.get("logprobs"))
    choice["finish_reason"] = theirs.get("finish_reason")
    choice["stop_reason"] = theirs.get("stop_reason")
    merged |= identity(request, answer)
    merged["object"] = _OBJECTS[request.endpoint]
    ids = [*([answer.token] if leg.forwarded else []), *(theirs.get("token_ids") or [])]
    choice["token_ids"] = ids if request.want_token_ids else None
    place = merged if request.endpoint is Endpoint.CHAT else choice
    place["prompt_token_ids"] = answer.prompt_ids if request.want_token_ids else None
    if "prompt_text" in answer.payload:
        merged["prompt_text"] = answer.payload["prompt_text"]
    merged["choices"] = [choice]
    merged["usage"] = merged_usage(answer.usage, payload.get("usage") or {}, leg.forwarded)
    return merged


def stripped_answer(request: ClientRequest, payload: Json, answer: PrefillAnswer | None = None) -> Json:
    """One engine's answer without what belongs to engines; with P's answer, its prompt side of the usage."""
    hidden = INTERNAL if request.want_token_ids else INTERNAL | IDS
    shown = {name: None if name in hidden else value for name, value in payload.items()}
    if not request.want_token_ids:
        shown["choices"] = [
            {name: None if name in IDS else value for name, value in choice.items()} for choice in payload.get("choices") or []
        ]
    usage = payload.get("usage")
    if answer is not None and isinstance(usage, dict):
        shown["usage"] = merged_usage(answer.usage, usage, 0)
    return shown


def _shape(request: ClientRequest, answer: PrefillAnswer) -> tuple[Json, Json]:
    """P's answer, which has the shape that the client expects, to be filled with the whole one: the answer, its choice."""
    whole = stripped_answer(request, answer.payload)
    choice = dict(whole["choices"][0])
    if request.endpoint is Endpoint.CHAT:
        choice["message"] = dict(choice["message"])
    return whole, choice
