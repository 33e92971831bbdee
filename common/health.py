"""The small HTTP server through which supervisors and Prometheus look at a process.

It has a thread and an event loop of its own, so that it answers when the process's loop does not: then `/health` is 503 with
`loop_stuck`, for how long, and what that loop is doing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pegaflow.common import logs, metrics
from pegaflow.common.listening import listening
from pegaflow.common.version import package_version

if TYPE_CHECKING:
    from pegaflow.common.lifecycle import Lifecycle

MAX_REQUEST_BYTES: Final = 8192
"""Head of a request; probes and scrapers send a few hundred bytes."""
MAX_CONNECTIONS: Final = 64
"""A handful of probes at once; more is somebody else's mistake, and the oldest makes room."""
REQUEST_SECONDS: Final = 5.0
RENDER_SECONDS: Final = 0.5
"""For the service's loop to say what it counts; after that a scrape gets what it said last."""

Answer = tuple[str, str, bytes]
"""Status, content type, body."""

log = logs.get(__name__)


class HealthServer:
    """GET /health (alive), /ready (200, or 503 and reasons as JSON), /metrics, /version; a request per connection.

    Port 0 means off, for which :meth:`start` does nothing. Owns its thread, its listening socket and its connections. `render` is
    called on the loop that the lifecycle watches, or on the server's own where none is watched.
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
        self._rendered = b""
        self._rendering: concurrent.futures.Future[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def start(self) -> None:
        """Returns when it listens. Raises StartError when the address cannot be bound, or is none."""
        if self._port:
            with listening(self._host, self._port):
                self._begin(self._port)

    def start_anywhere(self) -> int:
        """Listen on a port that the system picks, for tests; returns the port."""
        return self._begin(0)

    def close(self) -> None:
        """Ends the thread; open connections are cut. Idempotent."""
        if self._thread is not None:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
            self._thread = None

    def _begin(self, port: int) -> int:
        bound: concurrent.futures.Future[int] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen(port, bound)), name="health", daemon=True)
        self._thread.start()
        try:
            return bound.result()
        except Exception:
            self._thread.join()
            self._thread = None
            raise

    async def _listen(self, port: int, bound: concurrent.futures.Future[int]) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._connected, self._host, port, limit=MAX_REQUEST_BYTES)
        except OSError as error:
            bound.set_exception(error)
            return
        except Exception as error:  # a host that no resolver takes, for one
            bound.set_exception(OSError(errno.EADDRNOTAVAIL, f"{self._host!r}: {error}"))
            return
        bound.set_result(server.sockets[0].getsockname()[1])
        await self._end.wait()
        server.close()
        tasks = list(self._connections)
        for task in tasks:
            self._cut(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS:
            self._cut(next(iter(self._connections)))  # the oldest: whoever really asks is done in milliseconds
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda ended: self._connections.pop(ended, None))

    def _cut(self, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step runs none of its own clean-up."""
        task.cancel()
        self._connections.pop(task).close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_seconds):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                    status, kind, body = await self._answer(head)
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

    async def _answer(self, head: bytes) -> Answer:
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _plain("400 Bad Request", "not HTTP/1")
        if parts[0] not in (b"GET", b"HEAD"):
            return _plain("405 Method Not Allowed", "only GET and HEAD")
        match parts[1].split(b"?", 1)[0]:
            case b"/health":
                return self._health()
            case b"/ready":
                reasons = self._lifecycle.reasons()
                status = "503 Service Unavailable" if reasons else "200 OK"
                return _json(status, {"ready": not reasons, "reasons": reasons})
            case b"/version":
                return _json("200 OK", {"service": self._lifecycle.service, "version": package_version()})
            case b"/metrics":
                return await self._metrics()
            case _:
                return _plain("404 Not Found", "one of /health, /ready, /metrics, /version")

    def _health(self) -> Answer:
        life, watch = self._lifecycle, self._lifecycle.watch
        if not watch.stuck:
            return _json("200 OK", {"state": life.state.value})
        stuck = {"state": life.state.value, "code": "loop_stuck", "seconds": round(watch.stalled(), 1), "where": watch.where()}
        return _json("503 Service Unavailable", stuck)

    async def _metrics(self) -> Answer:
        """What the process says of itself is of this moment; what the service counts as well, if its loop turns."""
        loop = self._lifecycle.watch.loop
        try:
            if loop is None:
                self._rendered = self._render()
            else:
                async with asyncio.timeout(RENDER_SECONDS):
                    self._rendered = await asyncio.shield(asyncio.wrap_future(self._ask(loop)))
        except TimeoutError:
            log.warning("metrics_late", stalled_s=round(self._lifecycle.watch.stalled(), 1))
        except Exception:
            log.exception("metrics_failed")
            return _plain("500 Internal Server Error", "the metrics could not be read; see the log")
        return "200 OK", metrics.CONTENT_TYPE, self._rendered + metrics.render(metrics.process())

    def _ask(self, loop: asyncio.AbstractEventLoop) -> concurrent.futures.Future[bytes]:
        """However many ask, a loop that comes round finds one question."""
        if self._rendering is not None and not self._rendering.done():
            return self._rendering
        asked: concurrent.futures.Future[bytes] = concurrent.futures.Future()

        def render() -> None:
            try:
                asked.set_result(self._render())
            except Exception as error:
                asked.set_exception(error)

        loop.call_soon_threadsafe(render)
        self._rendering = asked
        return asked


def _json(status: str, value: object) -> Answer:
    return status, "application/json", json.dumps(value).encode()


def _plain(status: str, text: str) -> Answer:
    return status, "text/plain; charset=utf-8", (text + "\n").encode()
