"""One client's connection: uvicorn's, with the router's limits and error shape below HTTP's level.

h11 and not httptools, which uvicorn would take where it is installed: httptools has no limit for a request's head.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from typing import Any, Final

import h11
from pegaflow.common import logs
from pegaflow.services.router.client_headers import REQUEST_ID
from pegaflow.services.router.measures import RouterMetrics
from pegaflow.services.router.openai import dumps, error_body
from pegaflow.services.router.reply import LINGER_SECONDS
from pegaflow.services.router.room import Room
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logs.get(__name__)

_CHUNKED: Final = b"\r\ntransfer-encoding: chunked\r\n"
_CODES: Final = {
    400: "invalid_http",
    408: "request_timeout",
    431: "header_too_large",
    501: "unsupported_transfer_encoding",
    503: "too_many_connections",
}
_TEXTS: Final = {
    408: "the request's head did not arrive in time",
    431: "the header is too large",
    503: "the router has as many connections as it may have",
}
RETRY_AFTER_SECONDS: Final = "1"


class _Corked:
    """A transport whose writes of one turn of the event loop go out as one.

    PERF: a write is a system call, and often wakes the client; an answer is a head, a body and an end.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        # Reached without this class: all but what has to come behind what is held.
        self.get_extra_info = transport.get_extra_info
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.can_write_eof = transport.can_write_eof

    def write(self, data: bytes) -> None:
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))


class _Http(h11.Connection):
    """h11's state machine, but for the pieces of a chunked answer: it keeps nothing of them, and to frame one it takes
    longer than all else that happens to it.
    """

    _chunked = False

    def send(self, event: Any) -> Any:
        if self._chunked and type(event) is h11.Data and self.our_state is h11.SEND_BODY:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data) if event.data else b""
        sent = super().send(event)
        if type(event) is h11.Response:
            self._chunked = _CHUNKED in sent.lower()
        return sent


class ClientConnection(H11Protocol):
    """Errors that no application sees have OpenAI's shape here too. `head_seconds`: from the first byte of a request's
    head to its last, and for the first request of a connection from its beginning. `stall_seconds`: for a client to take
    something of what is written to it. `room`: for connections.
    """

    def __init__(
        self, *args: Any, head_seconds: float, stall_seconds: float, room: Room, metrics: RouterMetrics, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._stall_seconds = stall_seconds
        self._stall_timer: asyncio.TimerHandle | None = None
        self._unread = 0
        self._room = room
        self._metrics = metrics
        self._counted = False
        max_head = self.config.h11_max_incomplete_event_size
        assert max_head is not None, "the server sets it"
        self.conn = _Http(h11.SERVER, max_head)
        self._head_seconds = head_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._deaf = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket: asyncio.Transport = transport  # type: ignore[assignment]  # asyncio's type is wider than what comes
        if transport.get_extra_info("ssl_object") is None:
            # Paused whenever something waits here for its client, not only when it is much: so no end of an answer is
            # forgotten. NOTE: under TLS uvloop never resumes then; there a limit for closing ends what is left.
            self._socket.set_write_buffer_limits(high=0)
        super().connection_made(_Corked(self._socket, self.loop))  # type: ignore[arg-type]  # what uvicorn uses of one
        self._counted = self._room.take(1)
        if self._counted:
            self._await_head()
        else:
            self._metrics.refused(_CODES[503])
            self._refuse(503, "")

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._stop_stall()
        if self._counted:
            self._counted = False
            self._room.give(1)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        self._stop_stall()
        super().resume_writing()

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

    def _await_reading(self) -> None:
        self._unread = self._socket.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self._stall_seconds, self._look_at_client)

    def _stop_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _look_at_client(self) -> None:
        # Nothing is written while writing is paused, so what waits only becomes less.
        if self._socket.get_write_buffer_size() < self._unread:
            self._await_reading()
            return
        self._stall_timer = None
        self._metrics.stalled()
        log.info("client_stalled", seconds=self._stall_seconds)
        self._socket.abort()

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
        kind = "invalid_request_error" if status < 500 or status == 501 else "server_error"
        body = dumps(error_body(_TEXTS.get(status, text), kind, _CODES.get(status, "invalid_http")))
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            (REQUEST_ID, f"req-{uuid.uuid4().hex}"),
        ]
        if status == 503:
            headers.append(("retry-after", RETRY_AFTER_SECONDS))
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        # What still arrives would reset the connection before the client has read this.
        self._deaf = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.close)
        else:
            self.transport.close()
