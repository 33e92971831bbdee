"""The router as an HTTP client of engines: what one may answer, byte by byte, and which connections are used again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from pegaflow.services.router.allowed import Allowed
from pegaflow.services.router.openai import Endpoint
from pegaflow.services.router.steps import Answered, Ended, Failed, FailureKind, Frames, Send
from pegaflow.services.router.upstream import LegEvent, Timeouts, Upstream

JSON = b"Content-Type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1;x=y\r\n}\r\n0\r\nT: x\r\n\r\n"
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Engine:
    """Answers request after request with raw bytes; `b""`: hangs up. `connections`: how many there were."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self.connections = 0
        self.heads: list[bytes] = []
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
                answer = self._answers.pop(0)
                step = 7 if len(answer) < 1000 else len(answer)  # cut anywhere
                for at in range(0, len(answer), step):
                    writer.write(answer[at : at + step])
                    await writer.drain()
                if not answer or b"Connection: close" in answer:
                    return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/base"
        upstream = Upstream(Timeouts(answer=5, first_byte=5, idle=5), Allowed.of([self.url], []))
        yield upstream
        await upstream.close()
        server.close()
        await server.wait_closed()


async def asked(upstream: Upstream, url: str, *, stream: bool = False) -> list[LegEvent]:
    leg = upstream.leg(url, Send(Endpoint.COMPLETIONS, {"prompt": "Hi"}, stream), {"x-request-id": "r1"}, prefill=False)
    events = [await leg.next()]
    while isinstance(events[-1], Frames) and events[-1].data[-1] != "[DONE]":
        events.append(await leg.next())
    await leg.close()
    return events


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (OK, Answered(200, b"{}")),
        (OK.replace(b"200 OK", b"418 "), Answered(418, b"{}")),
        (OK.replace(JSON, JSON + b"RETRY-After:  7 \r\n"), Answered(200, b"{}", retry_after="7")),
        (OK.replace(JSON, JSON + b"Retry-After: \xe9\r\n"), Answered(200, b"{}")),
        (OK.replace(JSON, b"Content-Type: text/plain\r\n"), Answered(200, b"{}", "text/plain")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nContent-Type: a/b\r\n\r\n" + OK, Answered(200, b"{}")),
        (
            CHUNKED,
            Answered(200, b"{}"),
        ),
        (b"HTTP/1.1 200 OK\r\n" + JSON + b"Connection: close\r\n\r\n{}", Answered(200, b"{}")),
        (b"HTTP/1.0 200 OK\r\n" + JSON + b"Connection: close\r\n\r\n{}", Answered(200, b"{}")),
        (b"HTTP/1.1 204 No Content\r\n" + JSON + b"\r\n", Answered(204, b"")),
    ],
)
def test_a_whole_answer(raw: bytes, expected: Answered) -> None:
    async def main() -> None:
        engine = Engine(raw)
        async with engine.running() as upstream:
            assert await asked(upstream, engine.url) == [expected]
            assert engine.heads[0].startswith(b"POST /base/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:")
            assert b"\r\nx-request-id: r1\r\n" in engine.heads[0]

    asyncio.run(main())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello\r\n\r\nConnection: close",
        OK[:-1],
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n{}\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade, close\r\n\r\nConnection: close",
        b"HTTP/1.1 200 OK\r\nA: " + b"a" * (1 << 19),
    ],
)
def test_what_is_no_answer(raw: bytes) -> None:
    async def main() -> None:
        engine = Engine(raw)
        async with engine.running() as upstream:
            upstream.timeouts = Timeouts(answer=0.5 if raw == OK[:-1] else 60.0)
            (event,) = await asked(upstream, engine.url)
            assert isinstance(event, Failed)
            assert event.kind is (FailureKind.TIMEOUT if raw == OK[:-1] else FailureKind.FAILED)

    asyncio.run(main())


def test_a_stream_and_its_end() -> None:
    async def main() -> None:
        piece = b"data: {}\n\n"
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        whole, cut = SSE + chunk * 3 + DONE, SSE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + chunk
        engine = Engine(whole, cut, SSE.replace(b"Event-Stream", b"plain") + DONE)
        async with engine.running() as upstream:
            events = await asked(upstream, engine.url, stream=True)
            assert [data for event in events if isinstance(event, Frames) for data in event.data] == ["{}"] * 3 + ["[DONE]"]
            *said, last = await asked(upstream, engine.url, stream=True)
            assert said == [Frames(["{}"])]
            assert isinstance(last, Failed | Ended)
            assert isinstance(last, Failed), "the end of the body did not come"
            (event,) = await asked(upstream, engine.url, stream=True)  # no event stream: a whole answer
            assert event == Answered(200, b"data: [DONE]\n\n", "Text/plain; charset=utf-8")

    asyncio.run(main())


def test_which_connections_are_used_again() -> None:
    async def main() -> None:
        piece = b"data: {}\n\n"
        stream = SSE + b"%x\r\n%b\r\n" % (len(piece), piece) + DONE
        engine = Engine(OK, stream, OK, OK.replace(JSON, b"Connection: close\r\n"), OK)
        async with engine.running() as upstream:
            for streams in (False, True, False, False):
                await asked(upstream, engine.url, stream=streams)
                while upstream.ending:  # a stream's very last bytes may still be on their way
                    await asyncio.sleep(0)
                assert engine.connections == 1
            assert await asked(upstream, engine.url) == [Answered(200, b"{}")]  # it was closed
            assert engine.connections == 2

    asyncio.run(main())


def test_an_engine_with_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        for issuer, name, good in (
            (authority, "127.0.0.1", True),
            (authority, "elsewhere.example", False),
            (stranger, "127.0.0.1", False),
        ):
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            issuer.issue_cert(name).configure_cert(context)
            engine = Engine(OK, OK)
            async with engine.running(context) as upstream:
                (event,) = await asked(upstream, engine.url)
                if good:
                    assert event == Answered(200, b"{}")
                else:
                    assert isinstance(event, Failed)
                    assert event.kind is FailureKind.UNREACHABLE
                    assert not engine.heads

    asyncio.run(main())
