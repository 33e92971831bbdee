"""The small HTTP server through which supervisors and Prometheus look at a tier or a metaserver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pegaflow.common import logs, metrics
from pegaflow.common.version import package_version

if TYPE_CHECKING:
    from pegaflow.common.lifecycle import Lifecycle

MAX_REQUEST_BYTES: Final = 8192
"""Head of a request; probes and scrapers send a few hundred bytes."""
MAX_CONNECTIONS: Final = 64
"""A handful of probes at once; more is somebody else's mistake and gets a closed connection."""
REQUEST_SECONDS: Final = 5.0

log = logs.get(__name__)


class HealthServer:
    """GET /health (alive), /ready (200, or 503 and reasons as JSON), /metrics, /version; a request per connection.

    Port 0 means off, for which :meth:`start` does nothing. Owns its listening socket and its connections.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        host: str,
        port: int,
        *,
        render: Callable[[], bytes] = metrics.render,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._lifecycle = lifecycle
        self._host = host
        self._port = port
        self._render = render
        self._request_seconds = request_seconds
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises OSError when the address cannot be bound."""
        if self._port:
            self._server = await asyncio.start_server(self._connected, self._host, self._port, limit=MAX_REQUEST_BYTES)

    async def start_anywhere(self) -> int:
        """Listen on a port that the system picks, for tests; returns the port."""
        self._server = await asyncio.start_server(self._connected, self._host, 0, limit=MAX_REQUEST_BYTES)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_seconds):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, kind, body = self._answer(head)
                except asyncio.LimitOverrunError:
                    status, kind, body = _plain("431 Request Header Fields Too Large", "request too large")
                    head = b""
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode("ascii")
                )
                if not head.startswith(b"HEAD "):
                    writer.write(body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the prober went away or never finished its request; there is nobody to tell
        finally:
            writer.close()

    def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _plain("400 Bad Request", "not HTTP/1")
        if parts[0] not in (b"GET", b"HEAD"):
            return _plain("405 Method Not Allowed", "only GET and HEAD")
        match parts[1].split(b"?", 1)[0]:
            case b"/health":
                return _json("200 OK", {"state": self._lifecycle.state.value})
            case b"/ready":
                reasons = self._lifecycle.reasons()
                status = "503 Service Unavailable" if reasons else "200 OK"
                return _json(status, {"ready": not reasons, "reasons": reasons})
            case b"/version":
                return _json("200 OK", {"service": self._lifecycle.service, "version": package_version()})
            case b"/metrics":
                return "200 OK", metrics.CONTENT_TYPE, self._render()
            case _:
                return _plain("404 Not Found", "one of /health, /ready, /metrics, /version")


def _json(status: str, value: object) -> tuple[str, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


def _plain(status: str, text: str) -> tuple[str, str, bytes]:
    return status, "text/plain; charset=utf-8", (text + "\n").encode()
