"""What of a client's headers reaches an engine: an allow-list, so that nothing steers what was not meant to.

Headers here are pairs as they came, names in lower case: a name that comes twice is seen twice. Of those that steer
(vLLM's `x-data-parallel-rank`, other routers' `x-prefiller-host-port`, …) and of hop-by-hop ones none is on the list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

RawHeaders = Iterable[tuple[bytes, bytes]]

REQUEST_ID: Final = "x-request-id"
PASSED: Final = frozenset({"authorization", "x-session-id", "x-vllm-priority"})
"""Taken over where the client sent exactly one, in printable ASCII; beside them the request id and the trace."""

_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_PRINTABLE: Final = re.compile(rb"[ -~]*")
# W3C Trace Context, 3.2: version ff and ids of zeros are invalid; versions above 00 may be longer.
_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?")
_TRACESTATE_BYTES: Final = 512


def values(headers: RawHeaders, name: str) -> list[bytes]:
    wanted = name.encode()
    return [value for key, value in headers if key == wanted]


def request_id(headers: RawHeaders, fresh: Callable[[], str]) -> str:
    """The client's request id where it sent one that is fit for logs and headers, else a fresh one."""
    match values(headers, REQUEST_ID):
        case [value] if _ID.fullmatch(value):
            return value.decode()
    return fresh()


def forwarded(headers: RawHeaders, request_id: str, authorization: str | None) -> dict[str, str]:
    """The headers for an engine. `authorization` replaces the client's; "" removes it, None leaves it."""
    headers = list(headers)
    nominated = {
        name.strip().lower().decode("latin-1") for value in values(headers, "connection") for name in value.split(b",")
    }  # hop by hop, because this client says so (RFC 9110, 7.6.1)
    passed: dict[str, str] = {}
    for name in sorted(PASSED - nominated):
        match values(headers, name):
            case [value] if _PRINTABLE.fullmatch(value):
                passed[name] = value.decode()
    if authorization is not None:
        passed.pop("authorization", None)
    if authorization:
        passed["authorization"] = authorization
    if "traceparent" not in nominated:
        passed |= _trace(headers, state="tracestate" not in nominated)
    passed[REQUEST_ID] = request_id
    return passed


def _trace(headers: RawHeaders, *, state: bool) -> Mapping[str, str]:
    match values(headers, "traceparent"):
        case [parent] if _is_traceparent(parent):
            found = {"traceparent": parent.decode()}
        case _:
            return {}  # and no tracestate: it belongs to a parent
    joined = b",".join(values(headers, "tracestate"))
    if state and joined and len(joined) <= _TRACESTATE_BYTES and _PRINTABLE.fullmatch(joined):
        found["tracestate"] = joined.decode()
    return found


def _is_traceparent(value: bytes) -> bool:
    found = _TRACEPARENT.fullmatch(value)
    return found is not None and not (found[1] == b"00" and found[2])
