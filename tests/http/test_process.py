"""The command as a process: what SIGTERM does, and exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Drain
from router_process import Process, router, until_ready
from scripted_engine import ScriptedEngine, hangs, pauses, streams

BODY = {"prompt": "Hi", "stream": True}


async def sigterm(running: Process, control: str) -> None:
    running.process.send_signal(signal.SIGTERM)


async def command(running: Process, control: str) -> None:
    factory = SocketFactory()
    client = RpcClient(factory, asyncio.get_running_loop(), control)
    assert isinstance(await client.request(Drain(), 10), Done)
    client.close()
    factory.close()


@pytest.mark.parametrize("told", [sigterm, command])
def test_told_to_end_it_lets_streams_finish_and_exits_0(told: Callable[[Process, str], Awaitable[None]], tmp_path: Path) -> None:
    async def main() -> None:
        control = f"ipc://{tmp_path}/c"
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        go_on = asyncio.Event()
        decode.disturb(pauses(go_on))
        async with prefill.running(), decode.running(), aiohttp.ClientSession() as session:
            argv = ("--prefill", prefill.url, "--decode", decode.url, "--pd-first-token", "--drain-notice", "0")
            async with router(*argv, "--control", control) as running:
                await until_ready(session, running.url)
                async with session.post(running.url + "/v1/completions", json=BODY) as response:
                    assert b"Hel" in await response.content.readuntil(b"\n\n")
                    await told(running, control)
                    await running.logged("draining")
                    for stream in (False, True):  # on new connections, while that one goes on
                        async with session.post(running.url + "/v1/completions", json=BODY | {"stream": stream}) as late:
                            assert (late.status, late.headers["Retry-After"]) == (503, "1")
                            assert (await late.json())["error"]["code"] == "router_stopping"
                    async with session.get(running.url + "/ready") as ready:
                        assert ready.status == 503
                        assert (await ready.json())["reasons"][0]["code"] == "draining"
                    async with session.get(running.url + "/health") as health:
                        assert health.status == 200
                    assert len(decode.calls) == 1
                    go_on.set()
                    rest = await response.read()
                    assert rest.endswith(b"data: [DONE]\n\n")
                assert await running.process.wait() == 0

    asyncio.run(main())


def test_at_the_drain_deadline_streams_end_with_an_error() -> None:
    async def main() -> None:
        prefill, decode = ScriptedEngine(), ScriptedEngine()
        decode.disturb(streams(decode, chunks=2, then=hangs), hangs)
        async with prefill.running(), decode.running(), aiohttp.ClientSession() as session:
            argv = ("--prefill", prefill.url, "--decode", decode.url, "--pd-first-token", "--drain-timeout", "300ms")
            async with router(*argv) as running:
                await until_ready(session, running.url)
                async with session.post(running.url + "/v1/completions", json=BODY) as response:
                    await response.content.readuntil(b"\n\n")
                    waiting = asyncio.create_task(whole(session, running.url))
                    await decode.calls_to_come(2)
                    running.process.send_signal(signal.SIGTERM)
                    rest = await response.read()
                    assert b'"code":"router_stopping"' in rest
                    assert b"[DONE]" not in rest
                    status, body = await waiting
                    assert (status, json.loads(body)["error"]["code"]) == (503, "router_stopping")
                assert await running.process.wait() == 0
            assert all(call.gone.is_set() for call in decode.calls)

    asyncio.run(main())


async def whole(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with session.post(url + "/v1/completions", json=BODY | {"stream": False}) as response:
        return response.status, await response.read()


async def exit_code(*argv: str) -> tuple[int | None, bytes]:
    command = [sys.executable, "-m", "pegaflow.services.router", *argv]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    return process.returncode, err


def test_exit_codes() -> None:
    async def main() -> None:
        code, err = await exit_code()
        assert (code, err) == (78, b"pegaflow-router: bad_config: no engines: give --engine, or --prefill and --decode\n")
        code, err = await exit_code("--engine", "tcp://x")
        assert code == 78
        code, err = await exit_code("--engine", "http://127.0.0.1:9", "--api-keys-file", "/nowhere")
        assert (code, err) == (78, b"pegaflow-router: bad_config: /nowhere: No such file or directory\n")
        code, err = await exit_code("--engine", "http://127.0.0.1:9", "--allow-upstream", "127.0.0.1:10")
        assert (code, err) == (
            78,
            b"pegaflow-router: bad_config: http://127.0.0.1:9 is not among allow_upstream: 127.0.0.1:10\n",
        )
        with socket.create_server(("127.0.0.1", 0)) as taken:
            code, err = await exit_code("--engine", "http://127.0.0.1:9", "--port", str(taken.getsockname()[1]))
        assert code == 75
        assert b"address_in_use" in err
        for more in (("--host", "203.0.113.1"), ("--health-host", "203.0.113.1", "--health-port", "1", "--port", "0")):
            code, err = await exit_code("--engine", "http://127.0.0.1:9", *more)
            assert code == 78
            assert b"bad_endpoint" in err and b"203.0.113.1" in err and b"Traceback" not in err

    asyncio.run(main())


def test_it_needs_neither_torch_nor_vllm_nor_nixl() -> None:
    async def main() -> None:
        script = (
            "import sys, pegaflow.services.router.__main__;"
            "sys.exit(','.join({'torch', 'vllm', 'nixl', 'numpy'} & {name.split('.')[0] for name in sys.modules}))"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=asyncio.subprocess.PIPE)
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"") or err == b"\n"

    asyncio.run(main())
