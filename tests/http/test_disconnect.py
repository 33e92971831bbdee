"""A client that goes away, in each phase: its engine hears of it, and nothing is left over."""

from __future__ import annotations

import asyncio
import json

import pytest
from routed import Routed, routed, until
from scripted_engine import Json, ScriptedEngine, answers, hangs, streams

BODY: Json = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "stream": True}


class Client:
    """A bare HTTP/1.1 client that can leave at any time."""

    def __init__(self, system: Routed) -> None:
        self._port = int(system.url.rsplit(":", 1)[1])

    async def send(self, path: str, raw: bytes, length: int | None = None) -> None:
        self.reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw) if length is None else length}\r\n\r\n"
        self._writer.write(head.encode() + raw)
        await self._writer.drain()

    async def leave(self) -> None:
        self._writer.transport.abort()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("phase", "stream"),
    [("prefill", False), ("prefill", True), ("decode", False), ("decode", True), ("streaming", True)],
)
def test_the_engine_is_cancelled_and_the_counters_return(phase: str, stream: bool, path: str) -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        engine = prefill if phase == "prefill" else decode
        engine.disturb(streams(decode, chunks=3, then=hangs) if phase == "streaming" else hangs)
        async with routed(prefill, decode) as system:
            client = Client(system)
            await client.send(path, json.dumps(BODY | {"stream": stream}).encode())
            call = (await engine.calls_to_come(1))[0]
            if phase == "streaming":
                await client.reader.readuntil(b"Hel")
            await client.leave()
            await call.gone.wait()
            await until(lambda: system.count(outcome="gone") == 1)
            await until(lambda: not system.parts.exchanges)
            system.assert_idle()
            # The next one is served as if nothing had been.
            assert (await system.post(path, BODY)).text == "Hello wörld!"

    asyncio.run(main())


def test_gone_while_waiting_to_try_again() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        prefill.disturb(answers(500))
        async with routed(prefill, decode) as system:
            client = Client(system)
            await client.send("/v1/completions", json.dumps(BODY).encode())
            await until(lambda: system.value("pegaflow_router_flow_retries_total") == 1)
            await client.leave()
            await until(lambda: system.count(outcome="gone") == 1)
            await until(lambda: not system.parts.exchanges)
            system.assert_idle()
            assert len(prefill.calls) == 1

    asyncio.run(main())


def test_gone_in_the_middle_of_its_body() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            client = Client(system)
            await client.send("/v1/completions", b'{"prompt"', length=100)
            await client.leave()
            assert (await system.post("/v1/completions", BODY)).text == "Hello wörld!"
            system.assert_idle()
            assert len(prefill.calls) == 1

    asyncio.run(main())


def test_many_clients_leave_at_once() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        count = 20
        decode.disturb(*[streams(decode, chunks=3, then=hangs)] * count)
        async with routed(prefill, decode) as system:
            clients = [Client(system) for _ in range(count)]
            for client in clients:
                await client.send("/v1/completions", json.dumps(BODY).encode())
            await decode.calls_to_come(count)
            for client in clients:
                await client.leave()
            await until(lambda: system.count(outcome="gone") == count)
            await until(lambda: not system.parts.exchanges)
            system.assert_idle()

    asyncio.run(main())


def test_a_connection_is_used_again_after_a_stream() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        async with routed(prefill, decode) as system:
            for _ in range(3):
                await system.post("/v1/completions", BODY)
            for engine in (prefill, decode):
                assert len({call.peer for call in engine.calls}) == 1

    asyncio.run(main())
