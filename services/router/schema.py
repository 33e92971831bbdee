"""The router's HTTP interface as an OpenAPI document.

Of a request it describes what the router itself reads or insists on. All else is the engine's to judge, whose own
document (vLLM: `/openapi.json`) says more.
"""

from __future__ import annotations

from typing import Final

from pegaflow.common.version import package_version
from pegaflow.services.router.openai import Endpoint, Json

_REQUEST_ID: Final[Json] = {"X-Request-Id": {"description": "the client's, or a new one", "schema": {"type": "string"}}}
_PLAN: Final[Json] = {"X-Pegaflow-Plan": {"description": "how it was answered", "schema": {"type": "string"}}}
_RETRY: Final[Json] = {"Retry-After": {"schema": {"type": "string"}}}
_ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
_EVENT: Final[Json] = {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
_SWITCH: Final[Json] = {"type": ["boolean", "null"]}
_COUNT: Final[Json] = {"type": ["integer", "null"]}
_FIELDS: Final[Json] = {
    "model": {"type": ["string", "null"]},
    "stream": _SWITCH,
    "stream_options": {
        "type": ["object", "null"],
        "properties": {"include_usage": _SWITCH, "continuous_usage_stats": _SWITCH},
    },
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "min_tokens": _COUNT,
    "n": _COUNT,
    "stop": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]},
    "include_stop_str_in_output": _SWITCH,
    "return_token_ids": _SWITCH,
}
_MESSAGE: Final[Json] = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"type": "string"},
        "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object"}}]},
    },
}
_ONE_ANSWER: Final[Json] = {"n": _COUNT | {"maximum": 1}, "best_of": _COUNT | {"maximum": 1}}
_ONE_PROMPT: Final[Json] = {
    Endpoint.COMPLETIONS: {"prompt": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}}
}
_PROMPTS: Final[Json] = {
    Endpoint.CHAT: {"messages": {"type": "array", "items": _MESSAGE}},
    Endpoint.COMPLETIONS: {
        "prompt": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    },
}
_REFUSALS: Final = {
    400: "not understood, or not possible here; `param` names the field",
    401: "the API key is missing or unknown, here or at an engine",
    404: "an engine does not know the model",
    408: "the body stopped arriving",
    413: "the body is too large",
    415: "the body is not plain JSON",
    429: "too many requests of this API key are open",
}
_FAILURES: Final = {
    500: "the router failed",
    502: "an engine failed or cannot be reached",
    503: "no engine is there, or it is busy, or the router is being stopped",
    504: "an engine did not answer in time",
}


def document(*, keyed: bool, split: bool) -> Json:
    """OpenAPI 3.1. `keyed`: whether clients need an API key; `split`: whether P's token is forwarded, for one answer each."""
    paths: Json = {endpoint.value: {"post": _generation(endpoint, split)} for endpoint in Endpoint}
    paths["/v1/models"] = {"get": _get("models of the healthy engines", {"type": "object"}, failures=(503,))}
    paths["/health"] = {"get": _get("the process is alive", {"type": "object"}, open=True)}
    ready = _get("every role has a healthy engine", {"type": "object"}, open=True)
    ready["responses"]["503"] = _json("not ready, with reasons", {"type": "object"})
    paths["/ready"] = {"get": ready}
    paths["/metrics"] = {"get": _get("for Prometheus", None)}
    paths["/version"] = {"get": _get("version of the router", {"type": "object"})}
    paths["/openapi.json"] = {"get": _get("this document", {"type": "object"}, open=True)}
    described: Json = {
        "openapi": "3.1.0",
        "info": {"title": "PegaFlow router", "version": package_version()},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }
    if keyed:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"key": []}]
    else:
        _without_keys(paths)
    return described


def _generation(endpoint: Endpoint, split: bool) -> Json:
    whole = {
        "type": "object",
        "required": ["id", "choices"],
        "properties": {"id": {"type": "string"}, "choices": {"type": "array", "items": {"type": "object"}}},
    }
    prompt = _PROMPTS[endpoint] if not split else _PROMPTS[endpoint] | _ONE_PROMPT.get(endpoint, {})
    fields = _FIELDS if not split else _FIELDS | _ONE_ANSWER
    body = {"type": "object", "required": list(prompt), "properties": prompt | fields}
    ok: Json = {
        "description": "the answer, or with `stream` its pieces, then `[DONE]`; an error frame in its place if it broke off",
        "headers": _REQUEST_ID | _PLAN,
        "content": {"application/json": {"schema": whole}, "text/event-stream": {"schema": _EVENT}},
    }
    responses: Json = {"200": ok}
    for status, text in _REFUSALS.items():
        responses[str(status)] = _json(text, _reference(), _RETRY if status == 429 else {})
    for status, text in _FAILURES.items():
        responses[str(status)] = _json(text, _reference(), _RETRY if status != 500 else {})
    responses["4XX"] = _json("an engine refused it", _reference())
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}, "responses": responses}


def _get(text: str, schema: Json | None, *, open: bool = False, failures: tuple[int, ...] = ()) -> Json:
    """An operation without parameters; `schema` None: text. `open`: without a key."""
    kind, shape = ("application/json", schema) if schema is not None else ("text/plain", {"type": "string"})
    ok = {"description": text, "headers": _REQUEST_ID, "content": {kind: {"schema": shape}}}
    operation: Json = {"responses": {"200": ok, "4XX": _json("refused", _reference())}}
    for status in failures:
        operation["responses"][str(status)] = _json(_FAILURES[status], _reference(), _RETRY)
    if open:
        operation["security"] = []
    return operation


def _without_keys(paths: Json) -> None:
    for operations in paths.values():
        for operation in operations.values():
            operation.pop("security", None)


def _json(text: str, schema: Json, headers: Json | None = None) -> Json:
    return {"description": text, "headers": _REQUEST_ID | (headers or {}), "content": {"application/json": {"schema": schema}}}


def _reference() -> Json:
    return {"$ref": "#/components/schemas/Error"}
