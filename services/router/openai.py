"""The OpenAI shapes that the router reads and writes: requests, errors, usage.

Bodies stay plain JSON objects: the router changes a few fields and passes on the rest, including what it has
never heard of. :class:`ClientRequest` holds what decisions need, read once and checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

Json = dict[str, Any]

MAX_DEPTH: Final = 200
"""Of a request's JSON. Python's parser takes about 1,000 levels, but who writes them again may stand deeper in its stack."""
COMPLETIONS_DEFAULT_LIMIT: Final = 16
"""What an absent `max_tokens` means on /v1/completions (vLLM: completion/protocol.py)."""


class Endpoint(StrEnum):
    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


class Refused(Exception):
    """The router itself refuses the request, before anything was sent to an engine.

    `status` is the HTTP status, `kind` OpenAI's `type`, `code` is stable, `param` names the field or is None.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str = "invalid_value",
        kind: str = "invalid_request_error",
        status: int = 400,
        headers: Mapping[str, str] = MappingProxyType({}),
    ):
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.status = status
        self.headers = headers

    def body(self) -> Json:
        return error_body(self.message, self.kind, self.code, self.param)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request. `body` is the parsed JSON as it came and must not be changed.

    Lengths are in tokens. `limit` is the most tokens the client wants, None for "as many as fit" (chat only).
    """

    endpoint: Endpoint
    body: Json
    stream: bool
    include_usage: bool
    usage_in_every_chunk: bool
    want_token_ids: bool
    limit: int | None
    min_tokens: int
    stops: tuple[str, ...]
    keep_stop: bool


def parse_request(endpoint: Endpoint, raw: bytes) -> ClientRequest:
    """Read a request body. Raises Refused where it is no JSON object or a field that decides has a wrong type.

    Everything else that may be wrong with it is left to the engine, whose answer the client gets.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object", code="invalid_json")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _depth(body) > MAX_DEPTH:
        raise Refused(f"the body is nested more than {MAX_DEPTH} deep", code="invalid_json")
    options = body.get("stream_options")
    if options is None:
        options = {}
    if not isinstance(options, dict):
        raise Refused("stream_options must be an object", param="stream_options")
    include_usage = bool(options.get("include_usage"))
    return ClientRequest(
        endpoint=endpoint,
        body=body,
        stream=_boolean(body, "stream"),
        include_usage=include_usage,
        usage_in_every_chunk=include_usage and bool(options.get("continuous_usage_stats")),
        want_token_ids=_boolean(body, "return_token_ids"),
        limit=_limit(endpoint, body),
        min_tokens=_whole(body, "min_tokens") or 0,
        stops=_stops(body),
        keep_stop=_boolean(body, "include_stop_str_in_output"),
    )


def _depth(value: Any) -> int:
    """How deep containers are nested; without recursion, whose limit it guards."""
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        level = [inner for part in level for inner in (part.values() if isinstance(part, dict) else part)]
    return depth


def error_body(message: str, kind: str, code: str, param: str | None = None) -> Json:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_in(payload: Any) -> Json | None:
    """The error object of an answer or a stream frame, if it is one."""
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    if isinstance(error, dict):
        return error
    # Older vLLM put the error's fields at the top level.
    if payload.get("object") == "error":
        return payload
    return None


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""`json.dumps` would make one for each chunk of a stream."""


def dumps(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which JSON can say in an escape and UTF-8 cannot say at all.
        return json.dumps(value, separators=(",", ":")).encode()


def speaks(chunk: Json) -> bool:
    """Whether a chunk of a stream carries a piece of the answer, and not only a role, an end or usage."""
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def frame(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dumps(value) + b"\n\n"


DONE: Final = b"data: [DONE]\n\n"


def merged_usage(prefill: Mapping[str, Any], decode: Mapping[str, Any], extra: int) -> Json:
    """Usage of the whole request: the prompt side from P, the completion side from D plus `extra` tokens.

    D saw the first token as part of its prompt, and nearly its whole prompt as cached: neither is the client's truth.
    """
    usage: Json = dict(decode)
    prompt = _count(prefill.get("prompt_tokens"))
    completion = _count(decode.get("completion_tokens")) + extra
    usage["prompt_tokens"] = prompt
    usage["completion_tokens"] = completion
    usage["total_tokens"] = prompt + completion
    usage.pop("prompt_tokens_details", None)
    if "prompt_tokens_details" in prefill:
        usage["prompt_tokens_details"] = prefill["prompt_tokens_details"]
    return usage


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _boolean(body: Json, name: str) -> bool:
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Refused(f"{name} must be true or false", param=name, code="invalid_type")


def _whole(body: Json, name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    # JSON has one kind of number; 16.0 is 16, and True is not 1.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(f"{name} must be a whole number", param=name, code="invalid_type")
    return value


def _limit(endpoint: Endpoint, body: Json) -> int | None:
    short = _whole(body, "max_tokens")
    long = _whole(body, "max_completion_tokens")
    if endpoint is Endpoint.COMPLETIONS:
        return COMPLETIONS_DEFAULT_LIMIT if short is None else short
    return short if long is None else long


def _stops(body: Json) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    if isinstance(stop, str):
        return (stop,) if stop else ()
    if isinstance(stop, list) and all(isinstance(text, str) for text in stop):
        return tuple(text for text in stop if text)
    raise Refused("stop must be a string or a list of strings", param="stop", code="invalid_type")
