"""The edge of the router's process: keys, limits, request ids, errors, and what is below HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from router_process import Process, connected, head, router, until_ready
from scripted_engine import Call, Json, ScriptedEngine, hangs, streams

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
BODY: Json = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi"}
RAW = json.dumps(BODY).encode()
TYPE = {"Content-Type": "application/json"}


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def assert_error(status: int, headers: Any, body: bytes, expected: tuple[int, str]) -> Json:
    """OpenAI's shape, and a request id."""
    error: Json = json.loads(body)["error"]
    assert (status, error["code"]) == expected
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    return error


async def ask(session: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None, **body: Any) -> tuple[int, bytes]:
    async with session.post(url + COMPLETIONS, json=BODY | body, headers=headers) as response:
        return response.status, await response.read()


def test_keys_are_asked_for_and_changed_while_requests_run(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "keys"
        file.write_text("# clients\nalice:sk-alice\nsk-nameless\n")
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        go_on = asyncio.Event()

        async def wait(call: Call) -> Any:
            await go_on.wait()
            return await decode.answer(call)

        argv = ("--api-keys-file", str(file), "--engine-api-key", "sk-engine", "--log-level", "debug")
        async with prefill.running(), decode.running(), aiohttp.ClientSession() as session:
            split = ("--prefill", prefill.url, "--decode", decode.url, "--pd-first-token")
            async with router(*split, *argv) as running:
                url = running.url
                await until_ready(session, url)
                for path, method in ((COMPLETIONS, "POST"), (CHAT, "POST"), ("/v1/models", "GET"), ("/metrics", "GET"),
                                     ("/version", "GET"), ("/nothing", "GET"), ("/health/", "GET")):  # fmt: skip
                    for wrong in ({}, key("sk-wrong"), key("sk-alice2"), key("alice"), {"Authorization": "Basic sk-alice"}):
                        async with session.request(method, url + path, headers=wrong) as response:
                            raw = await response.read()
                            error = assert_error(response.status, response.headers, raw, (401, "invalid_api_key"))
                            assert error["type"] == "invalid_request_error"
                            assert response.headers["WWW-Authenticate"] == "Bearer"
                            assert b"sk-" not in raw
                for path in ("/health", "/ready", "/openapi.json"):
                    async with session.get(url + path) as response:
                        assert response.status == 200
                assert not prefill.calls
                assert (await ask(session, url, key("sk-alice")))[0] == 200
                assert (await ask(session, url, key("sk-nameless")))[0] == 200
                # The engines hear the router's key, never a client's.
                seen = [call.request.headers["Authorization"] for call in prefill.calls + decode.calls]
                assert seen == ["Bearer sk-engine"] * 4

                decode.disturb(wait)
                open_one = asyncio.create_task(ask(session, url, key("sk-alice"), stream=True))
                await decode.calls_to_come(3)
                file.write_text("bob:sk-bob\n")
                await running.hang_up()
                assert (await ask(session, url, key("sk-alice")))[0] == 401
                assert (await ask(session, url, key("sk-bob")))[0] == 200
                go_on.set()
                status, raw = await open_one
                assert (status, raw.endswith(b"data: [DONE]\n\n")) == (200, True)

                file.write_text("bob:sk bob\n")  # not right: the old ones stay
                await running.hang_up()
                told = await running.logged("reload_failed", what="config")
                assert told["text"].endswith("keys: line 1: name and key must be printable ASCII without spaces")
                assert (await ask(session, url, key("sk-bob")))[0] == 200
                async with session.get(url + "/metrics", headers=key("sk-bob")) as response:
                    shown = await response.text()
                assert 'pegaflow_router_requests_total{code="invalid_api_key",outcome="refused",plan="none"}' in shown
                assert 'pegaflow_router_key_requests{key="alice"} 0.0' in shown
                assert "sk-" not in shown
            assert b"sk-" not in running.raw

    asyncio.run(main())


def test_open_requests_per_key(tmp_path: Path) -> None:
    async def main() -> None:
        file = tmp_path / "keys"
        file.write_text("a:sk-a\nb:sk-b\n")
        engine = ScriptedEngine()
        engine.disturb(streams(engine, chunks=2, then=hangs), hangs)
        argv = ("--api-keys-file", str(file), "--max-requests-per-key", "2")
        async with engine.running(), router("--engine", engine.url, *argv) as running, aiohttp.ClientSession() as session:
            await until_ready(session, running.url)
            first = asyncio.create_task(ask(session, running.url, key("sk-a"), stream=True))
            second = asyncio.create_task(ask(session, running.url, key("sk-a")))
            await engine.calls_to_come(2)
            for path in (CHAT, "/" + CHAT):
                async with session.post(running.url + path, json=BODY, headers=key("sk-a")) as response:
                    raw = await response.read()
                    error = assert_error(response.status, response.headers, raw, (429, "rate_limit_exceeded"))
                    assert error["type"] == "rate_limit_error"
                    assert response.headers["Retry-After"] == "1"
            assert (await ask(session, running.url, key("sk-b")))[0] == 200
            async with session.get(running.url + "/v1/models", headers=key("sk-a")) as response:
                assert response.status == 200  # what is not generated is not counted
            first.cancel()  # a client that goes away makes room
            while (await ask(session, running.url, key("sk-a")))[0] == 429:
                await asyncio.sleep(0.01)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(main())


def test_without_keys_all_clients_count_as_one() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        engine.disturb(hangs)
        argv = ("--max-requests-per-key", "1")
        async with engine.running(), router("--engine", engine.url, *argv) as running, aiohttp.ClientSession() as session:
            await until_ready(session, running.url)
            first = asyncio.create_task(ask(session, running.url, key("x")))
            await engine.calls_to_come(1)
            assert (await ask(session, running.url, key("y")))[0] == 429
            assert engine.calls[0].request.headers["Authorization"] == "Bearer x"  # the engine's own to check
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    asyncio.run(main())


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_what_engines_see_of_a_request() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        sent = {
            "X-Request-Id": "abc-1", "traceparent": PARENT, "tracestate": "a=1", "X-Session-Id": "s", "Authorization": "Bearer k",
            "X-data-parallel-rank": "3", "x-prefiller-host-port": "evil:1", "X-Forwarded-For": "1.2.3.4", "Cookie": "c=1",
            "Connection": "keep-alive, X-Session-Id", "Keep-Alive": "timeout=9", "TE": "trailers", "Proxy-Authorization": "p",
            "User-Agent": "client", "Accept-Encoding": "gzip",
        }  # fmt: skip
        async with (
            prefill.running(),
            decode.running(),
            aiohttp.ClientSession() as session,
            router("--prefill", prefill.url, "--decode", decode.url, "--pd-first-token") as running,
        ):
            await until_ready(session, running.url)
            steering = {"do_remote_prefill": True, "remote_host": "evil", "pegaflow_expected": False, "prompt_token_ids": [1]}
            async with session.post(running.url + CHAT, json=BODY | {"kv_transfer_params": steering}, headers=sent) as response:
                assert response.status == 200
                assert response.headers.getall("X-Request-Id") == ["abc-1"]
                assert "Server" not in response.headers
            (p,), (d,) = prefill.calls, decode.calls
            for call in (p, d):
                headers = {name.lower(): value for name, value in call.request.headers.items()}
                assert len(headers) == len(call.request.headers)
                own = {"host", "accept", "accept-encoding", "user-agent", "content-length", "content-type"}
                assert {name: value for name, value in headers.items() if name not in own} == {
                    "authorization": "Bearer k", "x-request-id": "abc-1", "traceparent": PARENT, "tracestate": "a=1",
                }  # fmt: skip
                assert headers["accept-encoding"] == "identity"
                assert "client" not in headers["user-agent"]
            assert p.body["kv_transfer_params"] == {"pegaflow_ask_saved": True}
            assert d.body["kv_transfer_params"].keys() == {"pegaflow_expected", "prompt_token_ids"}
            assert d.body["kv_transfer_params"]["pegaflow_expected"] is True
            assert d.body["kv_transfer_params"]["prompt_token_ids"] != [1]

            identities = set()
            for lines in ("", "X-Request-Id: a\r\nX-Request-Id: b\r\n", "X-Request-Id: a\r\n b\r\n", "X-Request-Id: a b\r\n",
                          "X-Request-Id: " + "a" * 129 + "\r\n"):  # fmt: skip
                async with connected(running.port) as client:
                    length = f"Content-Length: {len(RAW)}\r\nContent-Type: application/json\r\n"
                    await client.send(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{length}{lines}\r\n".encode() + RAW)
                    status, headers, _ = await client.answer()
                    assert status == 200
                    assert headers["x-request-id"].startswith("req-")
                    identities.add(headers["x-request-id"])
                    assert decode.calls[-1].request.headers.getall("X-Request-Id") == [headers["x-request-id"]]
            assert len(identities) == 5
            async with connected(running.port) as client:  # a bare CR is no HTTP at all
                await client.send(head(CHAT, {"X-Request-Id": "a\rb"}))
                assert_error(*await client.answer(), (400, "invalid_http"))

    asyncio.run(main())


def test_errors_below_and_above_http() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        options = ("--max-body", "1000", "--max-header", "2000")
        async with engine.running(), router("--engine", engine.url, *options) as running, aiohttp.ClientSession() as session:
            await until_ready(session, running.url)
            await below(running)
            await above(running)
            await bodies(running)
            assert not engine.calls
            assert (await ask(session, running.url))[0] == 200
            async with session.get(running.url + "/metrics") as response:
                shown = await response.text()
            for code in ("header_too_large", "body_too_large", "unsupported_media_type", "invalid_json"):
                assert f'pegaflow_router_requests_total{{code="{code}",outcome="refused",plan="none"}}' in shown
            assert "pegaflow_router_in_flight_requests 0.0" in shown

    asyncio.run(main())


async def below(running: Process) -> None:
    """What no application hears of."""
    for raw, status, code in (
        (b"hello\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/2\r\nHost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_http"),  # no Host
        (b"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400, "invalid_http"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "unsupported_transfer_encoding"),
        (b"GET / HTTP/9.9\r\nHost: x\r\nConnection: close\r\n\r\n", 505, "unsupported_http_version"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 200_000, 431, "header_too_large"),
        (b"GET /" + b"a" * 200_000, 431, "header_too_large"),
        (head(CHAT, TYPE | {"Transfer-Encoding": "chunked"}) + b"zz\r\n", 400, "invalid_http"),
    ):
        async with connected(running.port) as client:
            await client.send(raw)
            assert_error(*await client.answer(), (status, code))
            assert await client.closed()


async def above(running: Process) -> None:
    async with connected(running.port) as client:  # and all on one connection
        for raw, status, code in (
            (head("/nothing", method="GET"), 404, "not_found"),
            (head("/v1/chat/completions/", method="GET"), 404, "not_found"),
            (head("/%2e%2e/v1/models", method="GET"), 404, "not_found"),
            (head(CHAT, method="GET"), 405, "method_not_allowed"),
            (head(CHAT, method="PUT") + b"", 405, "method_not_allowed"),
            (head("/metrics", {"Content-Length": "0"}), 405, "method_not_allowed"),
            (head(CHAT, {"Content-Length": "0"}), 400, "invalid_json"),
            (head("/health", {"A": "a" * 1000, "B": "b" * 1000}, "GET"), 431, "header_too_large"),
            (head("/health?" + "a" * 1990, method="GET"), 431, "header_too_large"),
            (body(b"{"), 400, "invalid_json"),
            (body(b"[]"), 400, "invalid_json"),
            (body(b'{"a": "\xff"}'), 400, "invalid_json"),
            (body(b'{"stream": 1}'), 400, "invalid_type"),
            (body(b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}), 415, "unsupported_media_type"),
            (body(RAW, {"Content-Type": "text/json"}), 415, "unsupported_media_type"),
            (body(RAW, TYPE | {"Content-Encoding": "gzip"}), 415, "unsupported_content_encoding"),
        ):
            await client.send(raw)
            assert_error(*await client.answer(), (status, code))
        await client.send(head("/health", method="HEAD"))
        assert b" 405 " in await client.reader.readuntil(b"\r\n\r\n")  # and no body, or the next answer would not fit
        await client.send(head("/health", method="GET"))
        assert (await client.answer())[0] == 200


def body(raw: bytes, headers: dict[str, str] | None = None) -> bytes:
    return head(CHAT, (TYPE if headers is None else headers) | {"Content-Length": str(len(raw))}) + raw


async def bodies(running: Process) -> None:
    """Too large, said by Content-Length or by its own length; read to its end or not."""
    async with connected(running.port) as client:
        for _ in range(2):  # a short one is read, and the connection goes on
            await client.send(body(b"x" * 1001))
            assert_error(*await client.answer(), (413, "body_too_large"))
    async with connected(running.port) as client:
        await client.send(head(CHAT, TYPE | {"Content-Length": "100000000"}))
        answer = await client.answer()  # before a byte of it was sent
        assert_error(*answer, (413, "body_too_large"))
        assert answer[1]["connection"] == "close"
    async with connected(running.port) as client:
        await client.send(head(CHAT, TYPE | {"Content-Length": "100000000", "Expect": "100-continue"}))
        assert_error(*await client.answer(), (413, "body_too_large"))  # and not 100 before
        assert await client.closed()
    async with connected(running.port) as client:  # a client that sends everything before it reads
        await client.send(head(CHAT, TYPE | {"Content-Length": "20000000"}))
        await client.send(b"x" * 20_000_000)
        assert_error(*await client.answer(), (413, "body_too_large"))
        assert await client.closed()
    async with connected(running.port) as client:
        await client.send(head(CHAT, TYPE | {"Transfer-Encoding": "chunked"}))
        for _ in range(300):
            await client.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await client.send(b"0\r\n\r\n")
        assert_error(*await client.answer(), (413, "body_too_large"))
        assert await client.closed()
    async with connected(running.port) as client:
        await client.send(head(CHAT, TYPE | {"Transfer-Encoding": "chunked"}) + b"3e8\r\n" + b"x" * 1000 + b"\r\n0\r\n\r\n")
        assert_error(*await client.answer(), (400, "invalid_json"))  # 1,000 bytes are not too many
        await client.send(head("/health", method="GET"))
        assert (await client.answer())[0] == 200
    async with connected(running.port) as client:
        await client.send(head(CHAT, TYPE | {"Expect": "100-continue", "Content-Length": "1"}))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"{")
        assert_error(*await client.answer(), (400, "invalid_json"))


def test_a_client_that_does_not_go_on() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        argv = ("--client-timeout", "200ms")
        async with engine.running(), router("--engine", engine.url, *argv) as running, aiohttp.ClientSession() as session:
            await until_ready(session, running.url)
            starts = (
                b"",
                b"GET /hea",
                head("/health", method="GET") + b"GET /hea",
                head(CHAT, TYPE | {"Content-Length": "9"}) + b"{",
            )
            for start in starts:
                async with connected(running.port) as client:
                    await client.send(start)
                    if b"\r\n\r\nGET" in start:
                        assert (await client.answer())[0] == 200
                    assert_error(*await client.answer(), (408, "request_timeout"))
                    assert await client.closed()
            # A stream that is silent for longer is not its client's fault.
            engine.disturb(hangs)
            async with connected(running.port) as client:
                await client.send(body(RAW))
                (call,) = await engine.calls_to_come(1)
                await asyncio.sleep(0.5)  # longer than a client may be silent
                await client.send(head("/health", method="GET"))
                assert not client.reader.at_eof()
                assert not call.gone.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("allowed", [False, True])
def test_redirects_are_not_followed(allowed: bool) -> None:
    async def main() -> None:
        engine, other = ScriptedEngine(), ScriptedEngine()

        async def elsewhere(call: Call) -> Any:
            from aiohttp import web

            # Another host would be refused as such; one's own, with what could pass for an answer, is not.
            if allowed:
                return web.Response(status=303, headers={"Location": "/v1/models"})
            return web.Response(status=307, headers={"Location": other.url + call.path})

        engine.disturb(elsewhere, elsewhere)
        async with (
            engine.running(),
            other.running(),
            aiohttp.ClientSession() as session,
            router("--engine", engine.url) as running,
        ):
            await until_ready(session, running.url)
            async with session.post(running.url + CHAT, json=BODY) as response:
                assert_error(response.status, response.headers, await response.read(), (502, "engine_failed"))
                assert "Location" not in response.headers
        assert len(engine.calls) == 2
        assert not other.calls

    asyncio.run(main())
