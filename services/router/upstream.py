"""HTTP to engines: legs with deadlines, streams as events, cancellation by closing the connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp.connector import Connection
from pegaflow.services.router.allowed import Allowed, HostPort
from pegaflow.services.router.openai import dumps
from pegaflow.services.router.sse import EventParser, StreamBroken
from pegaflow.services.router.steps import Answered, Ended, Failed, FailureKind, Frames, Send

KEEPALIVE_SECONDS: Final = 4.0
"""Below uvicorn's 5 s, so that a request is not sent into a connection that the engine is just closing."""
LARGE_BODY_BYTES: Final = 1 << 19
"""From here on a body is written piece by piece, so that other requests are served meanwhile."""
DRAIN_SECONDS: Final = 0.05
"""After `[DONE]` only the chunk that ends the body is missing; with it the connection can be used again."""


class NotAllowed(aiohttp.ClientConnectionError):
    """The router was about to connect to what its operator has not allowed."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `answer`: the longest a whole answer may take; `first_byte`: the longest until a stream's first byte, from
    when it was asked for; `idle`: the longest silence within it.
    """

    connect: float = 5.0
    prefill: float = 300.0
    answer: float = 3600.0
    first_byte: float = 300.0
    idle: float = 300.0


LegEvent = Answered | Frames | Ended | Failed


class Leg:
    """One request to an engine. Owns the response until :meth:`close`.

    Closing it before the answer is whole closes the connection: that is how an engine learns that nobody waits.
    """

    def __init__(self, upstream: Upstream, url: str, send: Send, headers: Mapping[str, str], total: float) -> None:
        self._upstream = upstream
        self._url = url
        self._send = send
        self._headers = headers
        self._timeouts = upstream.timeouts
        self._total = total
        self._response: aiohttp.ClientResponse | None = None
        self._parser: EventParser | None = None
        self._silence: _Silence | None = None
        self._done = False

    async def next(self) -> LegEvent:
        """What the engine says next: one Answered, or Frames and Ended; a Failed ends either.

        Raises nothing of HTTP's. Must not be called again after the last one.
        """
        try:
            if self._parser is None:
                async with asyncio.timeout(self._timeouts.first_byte if self._send.stream else self._total):
                    response = await self._open()
                    if response.status < 200:  # it wants to speak something else than HTTP
                        return Failed(FailureKind.FAILED, f"the engine answered {response.status}")
                    if not _is_stream(self._send, response):
                        return await _whole(response)
                    # vLLM sends the status of a stream before it has a place for the request.
                    chunk = await response.content.readany()
                self._parser = EventParser()
                self._silence = _Silence(response.content, self._timeouts.idle)
            else:
                chunk = await self._read()
            while chunk:
                frames = self._parser.feed(chunk)
                if frames:
                    self._done = frames[-1] == "[DONE]"
                    return Frames(frames)
                chunk = await self._read()
            return Ended()
        except aiohttp.ConnectionTimeoutError:
            return Failed(FailureKind.UNREACHABLE, "no connection in time")
        except TimeoutError:  # some of aiohttp's are, too
            return Failed(FailureKind.TIMEOUT, "no answer in time")
        except aiohttp.ClientConnectorError as error:
            return Failed(FailureKind.UNREACHABLE, error.strerror or "cannot connect")
        except (aiohttp.ClientError, OSError) as error:
            return Failed(FailureKind.FAILED, f"{type(error).__name__}: {error}")
        except StreamBroken as error:
            return Failed(FailureKind.FAILED, str(error))

    async def close(self) -> None:
        """Idempotent, and waits for nothing; also right while :meth:`next` was cancelled."""
        if self._silence is not None:
            self._silence.close()
        response, self._response = self._response, None
        if response is not None:
            self._upstream.end(response, ending=self._done)

    async def _read(self) -> bytes:
        assert self._response is not None and self._silence is not None
        self._silence.begins()
        try:
            return await self._response.content.readany()
        finally:
            self._silence.ends()

    async def _open(self) -> aiohttp.ClientResponse:
        timeouts = self._timeouts
        self._response = await self._upstream.session().post(
            self._url + self._send.endpoint,
            data=_sendable(dumps(self._send.body)),
            headers={**self._headers, "Content-Type": "application/json", "Accept-Encoding": "identity"},
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=timeouts.connect,
                sock_read=None if self._send.stream else self._total,
            ),
            allow_redirects=False,
        )
        return self._response


class _Silence:
    """Ends a read that has waited too long.

    PERF: one timer for all reads of a stream, which looks when the present one began; a timer for each would cost more than
    the read. What the client takes its time for is not counted: nothing is read then.
    """

    __slots__ = ("_began", "_content", "_loop", "_seconds", "_timer")

    def __init__(self, content: aiohttp.StreamReader, seconds: float) -> None:
        self._content = content
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None
        self._timer = self._loop.call_later(seconds, self._look)

    def begins(self) -> None:
        self._began = self._loop.time()

    def ends(self) -> None:
        self._began = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        left = self._seconds if self._began is None else self._began + self._seconds - self._loop.time()
        if left <= 0:
            self._content.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_later(left, self._look)


class _AllowedConnector(aiohttp.TCPConnector):
    """Asked for every connection, new or pooled, whatever led to it."""

    def __init__(self, allowed: Allowed, **options: Any) -> None:
        super().__init__(**options)
        self._allowed = allowed

    async def connect(self, req: aiohttp.ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout) -> Connection:
        upstream = HostPort((req.url.host or "").lower(), req.url.port or 0)
        if upstream not in self._allowed:
            raise NotAllowed(f"{upstream} is not an allowed upstream")
        return await super().connect(req, traces, timeout)


class Upstream:
    """The client side of the router: one connection pool for all engines. Used and closed on one event loop."""

    def __init__(self, timeouts: Timeouts, allowed: Allowed) -> None:
        self.timeouts = timeouts
        self.allowed = allowed
        self._session: aiohttp.ClientSession | None = None
        self._endings: set[asyncio.Task[None]] = set()

    def session(self) -> aiohttp.ClientSession:
        """Made on first use."""
        if self._session is None:
            # The number of requests is bounded by the clients; a limit here would only hide a queue.
            tls = ssl.create_default_context()  # of this moment: aiohttp makes its own when it is imported
            connector = _AllowedConnector(self.allowed, limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ssl=tls)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    @property
    def ending(self) -> bool:
        """The end of some answer that nobody waits for is on its way."""
        return bool(self._endings)

    async def close(self) -> None:
        for ending in list(self._endings):
            await ending  # it has its own, short limit
        if self._session is not None:
            await self._session.close()
            self._session = None

    def leg(self, engine: str, send: Send, headers: Mapping[str, str], *, prefill: bool) -> Leg:
        """`engine` is its base URL."""
        return Leg(self, engine, send, headers, self.timeouts.prefill if prefill else self.timeouts.answer)

    async def get(self, url: str, path: str, seconds: float, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of a small GET. Raises OSError, TimeoutError among them, when there is no answer in time."""
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=self.timeouts.connect)
        try:
            async with self.session().get(url + path, timeout=timeout, headers=headers, allow_redirects=False) as response:
                return response.status, await response.read()
        except TimeoutError:
            raise  # some of aiohttp's are client errors as well
        except aiohttp.ClientError as error:
            refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
            raise (ConnectionRefusedError if refused else OSError)(f"{url}: {error}") from None

    def end(self, response: aiohttp.ClientResponse, *, ending: bool) -> None:
        """A request is over. `ending`: all was said, and the end of its body is on its way."""
        if response.closed or not ending:
            response.close()
            return
        task = asyncio.create_task(_read_end(response))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)


async def _read_end(response: aiohttp.ClientResponse) -> None:
    try:
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await response.content.read()
    finally:
        response.close()


def _sendable(raw: bytes) -> bytes | io.BytesIO:
    # The ids of a long prompt: aiohttp warns of bytes above 1 MiB, which it would write in one piece.
    return raw if len(raw) < LARGE_BODY_BYTES else io.BytesIO(raw)


def _is_stream(send: Send, response: aiohttp.ClientResponse) -> bool:
    return send.stream and response.status == 200 and response.content_type == "text/event-stream"


async def _whole(response: aiohttp.ClientResponse) -> Answered:
    return Answered(
        status=response.status,
        body=await response.read(),
        content_type=_plain(response.headers.get("Content-Type")) or "application/json",
        retry_after=_plain(response.headers.get("Retry-After")),
    )


def _plain(value: str | None) -> str | None:
    """A header that can be passed on: aiohttp takes more signs in headers than it or anybody else would send."""
    return value if value is not None and value.isascii() and value.isprintable() else None
