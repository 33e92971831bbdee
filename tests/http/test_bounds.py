"""What clients can take of the router: connections, memory for bodies, and its patience with those that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

from aiohttp import web
from routed import Routed, routed, until
from scripted_engine import Call, Json, ScriptedEngine, hangs, start_stream

COMPLETIONS = "/v1/completions"
BODY: Json = {"prompt": "Hi", "max_tokens": 8}


def test_open_connections_are_bounded() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        async with routed(engine, mixed=True, max_connections=2) as system:
            port = int(system.url.rsplit(":", 1)[1])
            first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            await until(lambda: system.value("pegaflow_router_connections") == 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            raw = await reader.read()  # an answer before it asked, and the end
            head, _, body = raw.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in head.lower()
            assert json.loads(body)["error"]["code"] == "too_many_connections"
            assert json.loads(body)["error"]["type"] == "server_error"
            writer.close()
            assert system.count(outcome="refused", code="too_many_connections") == 1
            for _, leaving in (first, second):
                leaving.close()
            await until(lambda: system.value("pegaflow_router_connections") == 0)
            assert (await system.post(COMPLETIONS, BODY)).status == 200

    asyncio.run(main())


def test_bodies_share_a_bounded_memory() -> None:
    async def main() -> None:
        engine = ScriptedEngine(model_length=100_000)
        engine.disturb(hangs)
        large = json.dumps(BODY | {"prompt": "x" * 6000}).encode()
        async with routed(engine, mixed=True, max_body=10_000, max_bodies=10_000) as system:
            first = asyncio.create_task(system.post(COMPLETIONS, large))
            await engine.calls_to_come(1)
            assert system.value("pegaflow_router_body_bytes") == len(large)
            refused = await system.post(COMPLETIONS, large)
            await check_refused(system, refused.status, refused.headers, refused.json)

            async def pieces() -> Any:  # no Content-Length: only its own length says it
                yield large[:100]
                yield large[100:]

            headers = {"Content-Type": "application/json"}
            async with system.session.post(system.url + COMPLETIONS, data=pieces(), headers=headers) as answer:
                names = {name.lower(): value for name, value in answer.headers.items()}
                await check_refused(system, answer.status, names, await answer.json())
            assert (await system.post(COMPLETIONS, BODY)).status == 200  # a small one has room
            assert system.value("pegaflow_router_body_bytes") == len(large)
            first.cancel()
            await until(lambda: system.value("pegaflow_router_body_bytes") == 0)
            assert (await system.post(COMPLETIONS, large)).status == 200
            assert system.count(code="overloaded") == 2
            await until(lambda: not system.parts.exchanges)
            system.assert_idle()

    asyncio.run(main())


async def check_refused(system: Routed, status: int, headers: dict[str, str], body: Json) -> None:
    assert (status, body["error"]["code"], body["error"]["type"]) == (503, "overloaded", "server_error")
    assert headers["retry-after"] == "1"


def floods(count: int) -> Any:
    """An engine that says `count` pieces of 1 MiB as fast as they are taken."""

    async def flood(call: Call) -> Any:
        response = await start_stream(call)
        for number in range(count):
            choice = {"index": 0, "text": "x" * (1 << 20), "finish_reason": "stop" if number == count - 1 else None}
            await response.write(b"data: " + json.dumps({"id": "a", "choices": [choice]}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    return flood


def asked(port: int, body: Json) -> socket.socket:
    """A client with little room for what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    client.connect(("127.0.0.1", port))
    raw = json.dumps(body).encode()
    client.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
    client.setblocking(False)
    return client


def test_a_client_that_stops_reading_is_given_up() -> None:
    async def main() -> None:
        engine = ScriptedEngine()
        engine.disturb(floods(64))
        async with routed(engine, mixed=True, client_stall_timeout=0.3) as system:
            client = asked(int(system.url.rsplit(":", 1)[1]), BODY | {"stream": True})
            (call,) = await engine.calls_to_come(1)
            await call.gone.wait()  # its engine is told
            await until(lambda: system.count(outcome="gone") == 1)
            await until(lambda: not system.parts.exchanges)
            assert system.value("pegaflow_router_clients_stalled_total") == 1
            await until(lambda: system.value("pegaflow_router_connections") == 0)
            system.assert_idle()
            client.close()

    asyncio.run(main())


def test_the_rest_of_an_answer_that_nobody_reads_is_given_up_too() -> None:
    """The exchange is over and its engine is free: only the connection is left."""

    async def main() -> None:
        engine = ScriptedEngine()

        async def large(call: Call) -> Any:
            choice = {"index": 0, "text": "x" * (16 << 20), "finish_reason": "stop"}
            return web.json_response({"id": "a", "choices": [choice]})

        engine.disturb(large)
        async with routed(engine, mixed=True, client_stall_timeout=0.3) as system:
            client = asked(int(system.url.rsplit(":", 1)[1]), BODY)
            await until(lambda: system.count(outcome="ok") == 1)
            system.assert_idle()
            await until(lambda: system.value("pegaflow_router_clients_stalled_total") == 1)
            await until(lambda: system.value("pegaflow_router_connections") == 0)
            system.assert_idle()
            client.close()

    asyncio.run(main())


async def read_slowly() -> bool:
    """False: this process stood still meanwhile, and its client with it, so that nothing is shown."""
    engine, gaps = ScriptedEngine(), [0.0]
    engine.disturb(floods(3))
    loop = asyncio.get_running_loop()

    async def beat() -> None:
        while True:
            began = loop.time()
            await asyncio.sleep(0.01)
            gaps.append(loop.time() - began)

    beating = asyncio.create_task(beat())
    async with routed(engine, mixed=True, client_stall_timeout=0.3) as system:
        client = asked(int(system.url.rsplit(":", 1)[1]), BODY | {"stream": True})
        read = b""
        with contextlib.suppress(ConnectionError):
            while not read.endswith(b"0\r\n\r\n") and (piece := await loop.sock_recv(client, 1 << 17)):
                read += piece
                await asyncio.sleep(0.02)  # in all it takes several times what a client may do nothing
        await asyncio.sleep(0.02)
        beating.cancel()
        client.close()
        if max(gaps) > 0.1:
            return False
        assert read.count(b"x") >= 3 << 20
        assert b"data: [DONE]" in read
        assert system.value("pegaflow_router_clients_stalled_total") == 0
        await until(lambda: system.count(outcome="ok") == 1)
    return True


def test_a_client_that_reads_slowly_is_not() -> None:
    while not asyncio.run(read_slowly()):
        pass  # the test's own time ends it
