"""One client's connection: uvicorn's, with the router's limits and error shape below HTTP's level.

h11 and not httptools, which uvicorn would take where it is installed: httptools has no limit for a request's head.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import Any, Final

import h11
from pegaflow.services.router.client_headers import REQUEST_ID
from pegaflow.services.router.openai import dumps, error_body
from pegaflow.services.router.reply import LINGER_SECONDS
from uvicorn.protocols.http.h11_impl import H11Protocol

_CODES: Final = {400: "invalid_http", 408: "request_timeout", 431: "header_too_large", 501: "unsupported_transfer_encoding"}
_TEXTS: Final = {408: "the request's head did not arrive in time", 431: "the header is too large"}


class ClientConnection(H11Protocol):
    """Errors that no application sees have OpenAI's shape here too. `head_seconds`: from the first byte of a request's
    head to its last, and for the first request of a connection from its beginning.
    """

    def __init__(self, *args: Any, head_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn's is narrower than asyncio's
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()  # the next head may have begun while this answer was given

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it while it handles h11's error, which knows better than 400."""
        error = sys.exc_info()[1]
        self._refuse(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400, str(error))

    def _watch_head(self) -> None:
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._await_head()
        else:
            self._head_came()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, "")

    def _refuse(self, status: int, text: str) -> None:
        self._head_came()
        if self.cycle is not None and not self.cycle.response_complete:
            # The body is not HTTP: its request ends as if the client had gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        body = dumps(error_body(_TEXTS.get(status, text), "invalid_request_error", _CODES.get(status, "invalid_http")))
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            (REQUEST_ID, f"req-{uuid.uuid4().hex}"),
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        # What still arrives would reset the connection before the client has read this.
        self._deaf = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
