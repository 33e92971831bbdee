"""The outermost ASGI layer: what is decided about a request before a byte of its body is read.

Its size, its key and its place among the open requests; so that who may not come in costs nothing, and a client that
waits for "100 Continue" never sends what would be refused.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from pegaflow.common import logs
from pegaflow.services.router import failures
from pegaflow.services.router.client_headers import RawHeaders, forwarded, request_id, values
from pegaflow.services.router.disconnect import App, Receive, Scope, Send
from pegaflow.services.router.guard import Guard
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.openai import Endpoint, Refused, error_body
from pegaflow.services.router.reply import Reply
from pegaflow.services.router.room import Room, Share

log = logs.get(__name__)

OPEN_PATHS: Final = frozenset({"/health", "/ready", "/openapi.json"})
"""Asked for by load balancers and tools that have no key; they say nothing of clients or engines' addresses."""
_COUNTED: Final = frozenset(endpoint.value for endpoint in Endpoint)
OVERLOADED: Final = "overloaded"
BODY: Final = "pegaflow.body"
"""Scope entry: the Share that a request's body takes of the room for all bodies."""
FORWARDED: Final = "pegaflow.forwarded"
"""Scope entry: the headers for engines, a dict."""


class Edge:
    """`authorization`: what engines get instead of a client's key, where clients have keys of the router's."""

    def __init__(
        self, app: App, guard: Guard, metrics: RouterMetrics, *, max_header: int, max_body: int, bodies: Room, authorization: str
    ) -> None:
        self._app = app
        self._guard = guard
        self._metrics = metrics
        self._max_header = max_header
        self._max_body = max_body
        self._bodies = bodies
        self._authorization = authorization
        self._open = 0
        self._stopping = False
        self.idle = asyncio.Event()
        """None of the requests that generate is open; what comes next may be."""
        self.idle.set()

    def stop(self) -> None:
        """Nothing more is let in that generates; what is in goes on."""
        self._stopping = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Falcon takes any number of slashes for one; what is decided here must not depend on them.
        scope["path"] = "/" + scope["path"].lstrip("/")
        identity = request_id(scope["headers"], _fresh_id)
        reply = Reply(scope, receive, send, identity)
        share = scope[BODY] = Share(self._bodies)
        try:
            name = self._admit(scope)
            try:
                kept = self._authorization if self._guard.keyed else None
                scope[FORWARDED] = forwarded(scope["headers"], identity, kept)
                await self._app(scope, reply.receive, reply.send)
            finally:
                share.close()
                if name is not None:
                    self._open -= 1
                    if not self._open:
                        self.idle.set()
                    self._guard.admission.leave(name)
                    self._metrics.key(name, self._guard.admission.open(name))
        except Refused as refused:
            self._metrics.refused(refused.code)
            log.debug("refused", code=refused.code, request_id=identity)
            await reply.answer(refused.status, refused.body(), refused.headers)
        except Exception:
            if reply.started:
                raise  # the server closes the connection, which is all that can be said now
            log.exception("unexpected", path=scope["path"], request_id=identity)
            await reply.answer(500, error_body("the router failed", "server_error", "router_failed"), {})
        await reply.end()

    def _admit(self, scope: Scope) -> str | None:
        """The name under which the request was counted, None for what is not counted. Raises Refused."""
        headers = scope["headers"]
        if scope["http_version"] not in ("1.0", "1.1"):
            raise Refused("the router speaks HTTP/1.1", code="unsupported_http_version", status=505)
        if _head_bytes(scope) > self._max_header:
            raise Refused(f"the header exceeds {self._max_header} bytes", code="header_too_large", status=431)
        if scope["path"] in OPEN_PATHS:
            return None
        name = self._guard.name_of(headers)
        if scope["path"] not in _COUNTED or scope["method"] != "POST":
            return None
        if _length(headers) > self._max_body:
            raise too_large(self._max_body)
        if not self._bodies.has(_length(headers)):
            raise overloaded()
        if self._stopping:
            raise stopping()
        self._guard.enter(name)
        self._open += 1
        self.idle.clear()
        self._metrics.key(name, self._guard.admission.open(name))
        return name


def too_large(limit: int) -> Refused:
    return Refused(f"the body exceeds {limit} bytes", code="body_too_large", status=413)


def stopping() -> Refused:
    failure = failures.stopping()
    headers = {"Retry-After": failures.RETRY_AFTER_SECONDS, "Connection": "close"}
    return Refused(failure.text, code=failure.code, kind="server_error", status=failure.status, headers=headers)


def overloaded() -> Refused:
    return Refused(
        "the bodies of open requests take all the memory that they may have together",
        code=OVERLOADED,
        kind="server_error",
        status=503,
        headers={"Retry-After": failures.RETRY_AFTER_SECONDS},
    )


def _head_bytes(scope: Scope) -> int:
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])  # ": " and the line's end
    return fields + len(scope["raw_path"]) + len(scope["query_string"])


def _length(headers: RawHeaders) -> int:
    match values(headers, "content-length"):
        case [value] if value.isdigit():  # the server has checked it
            return int(value)
    return 0


def _fresh_id() -> str:
    return f"req-{uuid.uuid4().hex}"
