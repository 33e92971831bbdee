"""HTTP to engines: legs with deadlines, streams as events, cancellation by closing the connection."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from aiohttp.connector import Connection
from pegaflow.services.router.allowed import Allowed, HostPort
from pegaflow.services.router.openai import dumps
from pegaflow.services.router.sse import EventParser, StreamBroken
from pegaflow.services.router.steps import Answered, Ended, Failed, FailureKind, Frame, Send

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


LegEvent = Answered | Frame | Ended | Failed


class Leg:
    """One request to an engine. Owns the connection until :meth:`close`.

    Closing it before the answer is whole closes the connection: that is how an engine learns that nobody waits.
    `more`: another Frame came in the same read, and :meth:`next` gives it without waiting.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        send: Send,
        headers: Mapping[str, str],
        timeouts: Timeouts,
        total: float,
    ) -> None:
        self._session = session
        self._url = url
        self._send = send
        self._headers = headers
        self._timeouts = timeouts
        self._total = total
        self._response: aiohttp.ClientResponse | None = None
        self._whole = False
        self.more = False
        self._events = self._read()

    async def next(self) -> LegEvent:
        """What the engine says next: one Answered, or Frames and Ended; a Failed ends either.

        Raises nothing of HTTP's. Must not be called again after the last one.
        """
        return await anext(self._events)

    async def close(self) -> None:
        """Idempotent; also right while :meth:`next` was cancelled."""
        await self._events.aclose()
        response, self._response = self._response, None
        if response is None:
            return
        if self._whole:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await response.content.read()
        response.close()

    async def _read(self) -> AsyncGenerator[LegEvent, None]:
        try:
            async with asyncio.timeout(self._timeouts.first_byte if self._send.stream else self._total):
                response = await self._open()
                streams = _is_stream(self._send, response)
                answered = None if streams else await _whole(response)
                # vLLM sends the status of a stream before it has a place for the request.
                chunk = await response.content.readany() if streams else b""
            if answered is not None:
                yield answered
                return
            parser = EventParser()
            while chunk:
                frames = deque(parser.feed(chunk))
                while frames:
                    data = frames.popleft()
                    self._whole, self.more = data == "[DONE]", bool(frames)
                    yield Frame(data)
                async with asyncio.timeout(self._timeouts.idle):
                    chunk = await response.content.readany()
            yield Ended()
        except TimeoutError as error:
            # aiohttp's own timeouts are TimeoutErrors as well, and ConnectionTimeoutError one of its kinds.
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                yield Failed(FailureKind.UNREACHABLE, "no connection in time")
            else:
                yield Failed(FailureKind.TIMEOUT, "no answer in time")
        except aiohttp.ClientConnectorError as error:
            yield Failed(FailureKind.UNREACHABLE, error.strerror or "cannot connect")
        except (aiohttp.ClientError, OSError) as error:
            yield Failed(FailureKind.FAILED, f"{type(error).__name__}: {error}")
        except StreamBroken as error:
            yield Failed(FailureKind.FAILED, str(error))

    async def _open(self) -> aiohttp.ClientResponse:
        timeouts = self._timeouts
        self._response = await self._session.post(
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
    """The client side of the router: one connection pool for all engines. Made and closed on its event loop."""

    def __init__(self, timeouts: Timeouts, allowed: Allowed) -> None:
        self.timeouts = timeouts
        self.allowed = allowed
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        # The number of requests is bounded by the clients; a limit here would only hide a queue.
        connector = _AllowedConnector(self.allowed, limit=0, keepalive_timeout=KEEPALIVE_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def leg(self, engine: str, send: Send, headers: Mapping[str, str], *, prefill: bool) -> Leg:
        """`engine` is its base URL."""
        total = self.timeouts.prefill if prefill else self.timeouts.answer
        return Leg(self._opened(), engine, send, headers, self.timeouts, total)

    async def get(self, url: str, seconds: float, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of a small GET. Raises OSError or TimeoutError when there is no answer in time."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._opened().get(url, timeout=timeout, headers=headers, allow_redirects=False) as response:
                return response.status, await response.read()
        except TimeoutError:
            raise  # some of aiohttp's are client errors as well
        except aiohttp.ClientError as error:
            raise OSError(f"{url}: {error}") from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the upstream client is not started")
        return self._session


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
