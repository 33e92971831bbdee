"""What an answer's parts look like: the fields that chunks and whole answers share, and logprobs of two parts made one."""

from __future__ import annotations

from typing import Any, Final

from pegaflow.common.transfer_params import KV_PARAMS
from pegaflow.services.router.openai import ClientRequest, Endpoint, Json
from pegaflow.services.router.prefill import PrefillAnswer

INTERNAL: Final = frozenset({KV_PARAMS, "ec_transfer_params"})
IDS: Final = frozenset({"token_ids", "prompt_token_ids"})
CHUNK_OBJECTS: Final = {Endpoint.CHAT: "chat.completion.chunk", Endpoint.COMPLETIONS: "text_completion"}
_COMPLETION_LOGPROBS: Final = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def identity(request: ClientRequest, answer: PrefillAnswer) -> Json:
    return {
        "id": answer.payload.get("id"),
        "object": CHUNK_OBJECTS[request.endpoint],
        "created": answer.payload.get("created"),
        "model": answer.payload.get("model"),
    }


def fingerprint(answer: PrefillAnswer) -> Json:
    """Of the engine that answered; the last chunk of a stream says it."""
    return {name: answer.payload[name] for name in ("system_fingerprint",) if name in answer.payload}


def without_first(choice: Json, chat: bool, tokens: int) -> Json:
    """The choice of a chunk without the logprobs of its first tokens."""
    logprobs = choice.get("logprobs")
    if not tokens or not logprobs:
        return choice
    lists = ("content",) if chat else _COMPLETION_LOGPROBS
    return {**choice, "logprobs": {**logprobs, **{name: logprobs[name][tokens:] for name in lists if logprobs.get(name)}}}


def logprobs_length(logprobs: Any) -> int:
    """Characters of the tokens in completions' logprobs, as vLLM counts offsets."""
    if not isinstance(logprobs, dict) or not logprobs.get("tokens"):
        return 0
    offsets = logprobs.get("text_offset") or [0]
    return int(offsets[-1]) + len(logprobs["tokens"][-1])


def shifted(logprobs: Json | None, by: int) -> Json | None:
    if not logprobs or not by:
        return logprobs
    return {**logprobs, "text_offset": [offset + by for offset in logprobs.get("text_offset") or []]}


def streamed(usage: Json) -> Json:
    """Usage as streams have it: without what is not known."""
    return {name: value for name, value in usage.items() if value is not None}


def joined_logprobs(endpoint: Endpoint, first: Json | None, rest: Json | None) -> Json | None:
    """Logprobs of two parts of one answer; offsets of the second part are moved behind the first."""
    if not first or not rest:
        return first or rest
    if endpoint is Endpoint.CHAT:
        return {**rest, "content": [*(first.get("content") or []), *(rest.get("content") or [])]}
    moved = rest
    if rest.get("text_offset") and rest["text_offset"][0] == 0:
        moved = shifted(rest, logprobs_length(first)) or rest
    return {**rest, **{name: [*(first.get(name) or []), *(moved.get(name) or [])] for name in _COMPLETION_LOGPROBS}}
