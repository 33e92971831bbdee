"""Upstreams at their worst: what they send, when they stop, and clients that do not keep up."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from pegaflow.services.router.allowed import Allowed, HostPort
from pegaflow.services.router.openai import Endpoint
from pegaflow.services.router.steps import Answered, Failed, Send
from pegaflow.services.router.upstream import Timeouts, Upstream
from routed import routed, until
from scripted_engine import EOS, REPLY, Call, Handler, Json, ScriptedEngine, hangs, hangs_up, rewritten, start_stream, streams

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODY: Json = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}
ERROR = b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", "code": 500}}\n\n'
CHUNKS = {CHAT: 7, COMPLETIONS: 6}
"""Of a whole answer; chat has one more, with the role."""


@pytest.mark.parametrize("then", [b"", ERROR, hangs_up], ids=["ends", "error", "hangs up"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_dies_after_any_number_of_events(path: str, then: Handler | bytes) -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        async with routed(engine, mixed=True, breaker_failures=0) as system:
            for sent in range(CHUNKS[path] + 1):
                engine.disturb(streams(engine, chunks=sent, then=then))
                calls = len(engine.calls)
                reply = await system.post(path, BODY | {"stream": True})
                silent = sent <= (path == CHAT)  # nothing, or the role alone
                whole = silent or (sent == CHUNKS[path] and then != ERROR)
                assert (reply.status, reply.done) == (200, whole), sent
                assert len(engine.calls) - calls == 1 + silent
                if whole:
                    assert (reply.text, reply.finish) == ("Hello wörld!", ("stop", None))
                else:
                    *told, error = reply.chunks
                    assert error["error"]["code"] == "engine_interrupted"
                    assert "Hello wörld!".startswith(reply.text)
                    assert len(told) == sent
                system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_hangs_before_headers(stream: bool) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        decode.disturb(hangs, hangs)
        async with routed(prefill, decode, answer_timeout=0.3, first_byte_timeout=0.3) as system:
            reply = await system.post(CHAT, BODY | {"stream": stream})
            assert (reply.status, reply.error_code) == (504, "pd_decode_timeout")
            assert system.value("pegaflow_router_flow_retries_total") == 1
            assert 1 <= len(decode.calls) <= 2  # the second may be over before the engine has read it
            await until(lambda: all(call.gone.is_set() for call in decode.calls))
            system.assert_idle()

    asyncio.run(main())


PAGE = b"<html><body>nginx</body></html>"


@pytest.mark.parametrize(
    ("status", "kind", "raw", "expected"),
    [
        (400, "text/html", PAGE, (400, "engine_rejected")),
        (404, "application/json", b'{"detail": "Not Found"}', (404, "engine_rejected")),
        (401, "application/json", b'{"error": "Unauthorized"}', (401, "engine_rejected")),
        (422, "text/plain", "ä\r\nX: y".encode(), (422, "engine_rejected")),
        (413, "application/json", b"", (413, "engine_rejected")),
        (418, "application/json", b'{"error": {"message": "m", "type": "t", "param": "p", "code": "c"}}', (418, "c")),
        (500, "text/html", PAGE, (502, "pd_decode_failed")),
        (502, "application/json", b'{"error": {"message": "secret"}}', (502, "pd_decode_failed")),
        (503, "text/plain", b"secret", (503, "pd_decode_busy")),
        (200, "text/html", PAGE, (502, "pd_decode_failed")),
        (200, "application/json", b"[1]", (502, "pd_decode_failed")),
        (204, "application/json", b"", (502, "pd_decode_failed")),
        (302, "text/html", PAGE, (502, "pd_decode_failed")),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_every_error_has_openais_shape(status: int, kind: str, raw: bytes, expected: tuple[int, str], stream: bool) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()

        async def says(call: Call) -> web.StreamResponse:
            return web.Response(status=status, body=raw, headers={"Content-Type": kind, "Set-Cookie": "a=b", "X-Internal": "1"})

        decode.disturb(says, says)
        async with routed(prefill, decode) as system:
            reply = await system.post(COMPLETIONS, BODY | {"stream": stream})
            assert (reply.status, reply.error_code) == expected
            assert reply.json["error"].keys() == {"message", "type", "param", "code"}
            assert reply.json["error"]["message"]
            assert b"secret" not in reply.body
            assert reply.headers["content-type"] == "application/json"
            assert not {"set-cookie", "x-internal", "location", "x"} & reply.headers.keys()
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_lines_of_a_megabyte(path: str) -> None:
    async def main() -> None:
        long = "ä" * (1 << 20)
        reply_ = ((1001, "a"), (1002, long), (1003, "b"), (EOS, ""))
        prefill, decode = ScriptedEngine(reply_, model_length=1 << 20), ScriptedEngine(reply_, model_length=1 << 20)
        async with routed(prefill, decode) as system:
            # The prompt's ids come back in one line of megabytes as well.
            body = BODY | {"messages": [{"role": "user", "content": "x" * 300_000}], "prompt": "x" * 300_000, "stream": True}
            reply = await system.post(path, body)
            assert reply.done
            assert reply.text == f"a{long}b"
            system.assert_idle()

    asyncio.run(main())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_ten_thousand_chunks_at_once(path: str) -> None:
    async def main() -> None:
        pieces = [(1001 + number, f"{number} ") for number in range(10_000)]
        reply_ = (*pieces, (EOS, ""))
        prefill, decode = (ScriptedEngine(reply_, model_length=100_000) for _ in range(2))
        decode.disturb(rewritten(decode, lambda whole: [whole]))
        async with routed(prefill, decode) as system:
            prompt = {"messages": BODY["messages"]} if path == CHAT else {"prompt": "Hi"}
            reply = await system.post(path, prompt | {"stream": True, "max_tokens": 20_000})
            assert reply.done
            assert reply.text == "".join(text for _, text in pieces)
            gaps = system.value("pegaflow_router_inter_token_seconds_count", plan="splice")
            assert gaps < len(pieces) / 10  # what came together is one piece
            system.assert_idle()

    asyncio.run(main())


def test_chunks_that_came_in_one_read_go_out_in_one_write() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        engine.disturb(rewritten(engine, lambda whole: [whole]))
        async with routed(engine, mixed=True) as system:
            async with system.session.post(system.url + COMPLETIONS, json=BODY | {"stream": True}) as response:
                parts = [part async for part, _ in response.content.iter_chunks()]
            assert b"".join(parts).count(b"data: ") == len(REPLY) + 1
            assert len(parts) < 5
            system.assert_idle()

    asyncio.run(main())


def test_a_slow_client_holds_its_engine_back() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        piece, total, written = "x" * (1 << 20), 64, 0

        async def floods(call: Call) -> Any:
            nonlocal written
            response = await start_stream(call)
            for number in range(total):
                last = number == total - 1
                choice = {"index": 0, "text": piece, "finish_reason": "stop" if last else None}
                await response.write(b"data: " + json.dumps({"id": "a", "choices": [choice]}).encode() + b"\n\n")
                written += 1
            await response.write(b"data: [DONE]\n\n")
            return response

        engine.disturb(floods)
        async with routed(engine, mixed=True) as system:
            async with system.session.post(system.url + COMPLETIONS, json=BODY | {"stream": True}) as response:
                seen = -1
                while written != seen:  # until it stands still, or has sent everything
                    seen = written
                    await asyncio.sleep(0.5)
                assert written < total  # what is on its way is bounded by buffers, not by the answer's length
                assert (await system.get("/health")).status == 200
                raw = await response.read()
            assert raw.count(b'"text":"xxx') == total
            assert raw.endswith(b"data: [DONE]\n\n")
            await until(lambda: not system.parts.exchanges)
            system.assert_idle()

    asyncio.run(main())


def test_no_connection_to_what_is_not_allowed() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        async with engine.running():
            for listed, allowed in ((HostPort.of_url(engine.url), True), (HostPort("127.0.0.1", 1), False)):
                upstream = Upstream(Timeouts(), Allowed.of([], [listed]))
                send = Send(Endpoint.COMPLETIONS, {"prompt": "Hi"}, stream=False)
                leg = upstream.leg(engine.url, send, {}, prefill=False)
                event = await leg.next()
                await leg.close()
                if allowed:
                    assert isinstance(event, Answered)
                    assert (await upstream.get(engine.url, "/health", 10, {}))[0] == 200
                else:
                    assert isinstance(event, Failed)
                    assert "is not an allowed upstream" in event.text
                    with pytest.raises(OSError, match="is not an allowed upstream"):
                        await upstream.get(engine.url, "/health", 10, {})
                await upstream.close()
            assert len(engine.calls) == 1

    asyncio.run(main())
