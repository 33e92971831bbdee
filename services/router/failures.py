"""Failures of engines as the client sees them: a stable code, a status, and when to try again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pegaflow.services.router.openai import Json, dumps, error_body, error_in
from pegaflow.services.router.steps import Answered, FailureKind, Role, Verdict

RETRY_AFTER_SECONDS: Final = "1"
"""Long enough for a health check to notice, short enough that a client's own retry hides a restart."""

ENGINE_REJECTED: Final = "engine_rejected"
"""The code of an engine's refusal that has none of its own."""
SHORT_TEXT_BYTES: Final = 500
"""What is longer is a page for people."""
CREDENTIALS: Final = frozenset({401, 403})
RETRYABLE_4XX: Final = frozenset({408, 425, 429})

_STATUS: Final = {
    FailureKind.UNREACHABLE: 502,
    FailureKind.TIMEOUT: 504,
    FailureKind.BUSY: 503,
    FailureKind.UNAUTHORIZED: 502,
    FailureKind.FAILED: 502,
}
_PREFIX: Final = {Role.PREFILL: "pd_prefill", Role.DECODE: "pd_decode", Role.ENGINE: "engine"}


@dataclass(frozen=True, slots=True)
class Failure:
    """`verdict`: what it says about the engine."""

    code: str
    status: int
    text: str
    retry_after: str | None = RETRY_AFTER_SECONDS
    verdict: Verdict = Verdict.BAD

    def body(self) -> Json:
        return error_body(self.text, "server_error", self.code)


def of_kind(role: Role, kind: FailureKind, text: str) -> Failure:
    return Failure(
        code=f"{_PREFIX[role]}_{kind}",
        status=_STATUS[kind],
        text=f"the {role} engine is {kind}: {text}" if kind is not FailureKind.FAILED else _broke(role, text),
        verdict=Verdict.DEAD if kind is FailureKind.UNREACHABLE else Verdict.BAD,
    )


def of_status(role: Role, event: Answered, *, own_key: bool) -> Failure | None:
    """The failure that an HTTP status means; None for 200 and for what is the client's own mistake. `own_key`: the engine
    was shown the router's key, or none, and not the client's; then 401 and 403 say nothing of the client.

    The engine's text is not passed on for 5xx: vLLM says only "Internal server error".
    """
    status = event.status
    if own_key and status in CREDENTIALS:
        code = f"{_PREFIX[role]}_{FailureKind.UNAUTHORIZED}"
        text = f"the {role} engine does not take the router's own key, it answered {status}"
        return Failure(code, _STATUS[FailureKind.UNAUTHORIZED], text)
    if status == 200 or (400 <= status < 500 and status not in RETRYABLE_4XX):
        return None
    busy = status in RETRYABLE_4XX or status == 503
    kind = FailureKind.BUSY if busy else FailureKind.FAILED
    return Failure(
        code=f"{_PREFIX[role]}_{kind}",
        status=_STATUS[kind],
        text=f"the {role} engine answered {status}",
        retry_after=event.retry_after or RETRY_AFTER_SECONDS,
        verdict=Verdict.NOTHING if status in RETRYABLE_4XX else Verdict.BAD,
    )


def rejected(event: Answered) -> bytes:
    """The body of an engine's 4xx for the client: as it is where it has OpenAI's shape, else its text in that shape."""
    try:
        payload = json.loads(event.body)
    except (ValueError, RecursionError):
        payload = None
    error = error_in(payload)
    if error is not None and error is not payload and error.keys() >= {"message", "type", "param", "code"}:
        return event.body
    if error is None:
        error = {"message": _text(payload, event)}
    shaped = error_body(f"an engine answered {event.status}", "invalid_request_error", ENGINE_REJECTED)
    shaped["error"] |= {name: value for name, value in error.items() if name in shaped["error"] and value is not None}
    return dumps(shaped)


def _text(payload: Any, event: Answered) -> str | None:
    """What an answer without an error object says: vLLM's `error` of a bad key, FastAPI's `detail`, a line of text."""
    if isinstance(payload, dict):
        return next((payload[name] for name in ("error", "detail", "message") if isinstance(payload.get(name), str)), None)
    line = event.body[: SHORT_TEXT_BYTES + 1].decode("utf-8", "replace").strip()
    page = len(event.body) > SHORT_TEXT_BYTES or line.startswith("<")
    return None if page or not line else f"an engine answered {event.status}: {line}"


def broken(role: Role, text: str) -> Failure:
    return of_kind(role, FailureKind.FAILED, text)


def no_engine(role: Role) -> Failure:
    return Failure(
        code="no_engine" if role is Role.ENGINE else f"pd_no_{role}_engine",
        status=503,
        text=f"no {named(role)} is healthy, or those that are failed again and again",
    )


def interrupted(role: Role, cause: Failure) -> Failure:
    """The engine was lost after the client had a part of the answer."""
    return Failure(code=f"{_PREFIX[role]}_interrupted", status=502, text=f"the answer broke off: {cause.text}")


def stopping() -> Failure:
    return Failure(code="router_stopping", status=503, text="the router is being stopped")


def named(role: Role) -> str:
    """For people."""
    return "engine" if role is Role.ENGINE else f"{role} engine"


def _broke(role: Role, text: str) -> str:
    return f"the {role} engine failed: {text}"
