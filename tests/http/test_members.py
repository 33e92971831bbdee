"""Engines that come and go while the router runs: by the control socket, by the command line tool, by SIGHUP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages import operate
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.router.control import ControlSocket
from routed import routed, until
from router_process import router, until_ready
from scripted_engine import ScriptedEngine, pauses

COMPLETIONS = "/v1/completions"
BODY = {"model": "tiny", "prompt": "Hi"}


def test_an_engine_joins_and_leaves_without_a_request_noticing() -> None:
    async def main() -> None:
        prefill, old, new = ScriptedEngine(), ScriptedEngine(), ScriptedEngine()
        go_on = asyncio.Event()
        old.disturb(pauses(go_on))
        async with routed(prefill, old) as system, new.running():
            control = ControlSocket("tcp://127.0.0.1:*", "r", system.parts.engines, system.parts.lifecycle)
            await control.start()
            factory = SocketFactory()
            client = RpcClient(factory, asyncio.get_running_loop(), control.endpoint)
            open_one = asyncio.create_task(system.post(COMPLETIONS, {**BODY, "stream": True}))
            await old.calls_to_come(1)
            assert isinstance(await client.request(operate.EngineAdd("decode", new.url + "/"), 10), Done)
            assert isinstance(await client.request(operate.EngineAdd("decode", new.url), 10), Done), "twice is once"
            await until(lambda: system.engine("healthy", new) == 1)
            assert isinstance(await client.request(operate.EngineRemove("decode", old.url), 10), Done)
            for _ in range(3):
                assert (await system.post(COMPLETIONS, BODY)).text == "Hello wörld!"
            assert (len(old.calls), len(new.calls)) == (1, 3)
            assert system.engine("legs", old) == 1
            views = json.loads((await client.request(operate.Status(), 10)).json)["engines"]
            (left,) = [one for one in views if one["url"] == old.url]
            assert (left["leaving"], left["requests"]) == (True, 1), "it may not be stopped yet, and that is seen"
            go_on.set()
            assert (await open_one).text == "Hello!"
            await until(lambda: not system.parts.exchanges)
            assert "pegaflow_router_engine_legs" in (await system.get("/metrics")).body.decode()
            assert old.url not in (await system.get("/metrics")).body.decode(), "it is forgotten"
            document = json.loads((await client.request(operate.Status(), 10)).json)
            assert [(one["role"], one["url"]) for one in document["engines"]] == [("prefill", prefill.url), ("decode", new.url)]
            assert isinstance(await client.request(operate.EngineRemove("decode", new.url), 10), Done)
            reply = await system.post(COMPLETIONS, BODY)
            assert (reply.status, reply.error_code) == (503, "pd_no_decode_engine")
            assert [one["code"] for one in (await system.get("/ready")).json["reasons"]] == ["no_decode"]
            system.assert_idle()
            client.close()
            factory.close()
            await control.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (operate.EngineAdd("engine", "http://a:1"), "this router has decode, prefill"),
        (operate.EngineAdd("cook", "http://a:1"), "this router has decode, prefill"),
        (operate.EngineAdd("decode", "a:1"), "is not a base URL"),
        (operate.EngineAdd("decode", "http://a:1/?x"), "is not a base URL"),
        (operate.EngineRemove("decode", "http://a:1"), "no decode engine http://a:1; there are: http://127.0.0.1"),
    ],
)
def test_what_cannot_be_done_says_why(message: operate.EngineAdd | operate.EngineRemove, text: str) -> None:
    async def main() -> None:
        async with routed(ScriptedEngine(), ScriptedEngine()) as system:
            before = system.parts.engines.all()
            control = ControlSocket("tcp://127.0.0.1:*", "r", system.parts.engines, system.parts.lifecycle)
            await control.start()
            factory = SocketFactory()
            client = RpcClient(factory, asyncio.get_running_loop(), control.endpoint)
            with pytest.raises(RemoteError, match=text) as raised:
                await client.request(message, 10)
            assert raised.value.code == "bad_message"
            assert system.parts.engines.all() == before
            client.close()
            factory.close()
            await control.close()

    asyncio.run(main())


def test_a_reload_and_the_command_line(tmp_path: Path) -> None:
    async def pegaflow(*argv: str) -> tuple[int | None, str]:
        command = [sys.executable, "-m", "pegaflow.services.cli", "engine", *argv]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=dict(os.environ))
        out, error = await process.communicate()
        return process.returncode, (out + error).decode()

    async def main() -> None:
        first, second = ScriptedEngine(), ScriptedEngine()
        file, control = tmp_path / "pegaflow.toml", f"ipc://{tmp_path}/c"
        async with first.running(), second.running(), aiohttp.ClientSession() as session:
            file.write_text(f'[router]\nengine = ["{first.url}"]\n')
            async with router("--config", str(file), "--control", control) as running:
                await until_ready(session, running.url)

                async def asked(engine: ScriptedEngine) -> None:
                    """Returns when this engine gets requests."""
                    before = len(engine.calls)
                    while len(engine.calls) == before:
                        async with session.post(running.url + COMPLETIONS, json=BODY) as response:
                            await response.read()

                await asked(first)
                file.write_text(f'[router]\nengine = ["{second.url}"]\n')
                running.process.send_signal(signal.SIGHUP)
                await asked(second)
                calls = len(first.calls)
                file.write_text('[router]\nengine = ["nonsense"]\n')
                running.process.send_signal(signal.SIGHUP)
                for _ in range(5):
                    await asked(second)
                assert len(first.calls) == calls, "it is out, and a file that is wrong changes nothing"
                assert await pegaflow("add", "engine", first.url, "--yes", "--router", control) == (0, "")
                await asked(first)
                code, listed = await pegaflow("list", "--router", control)
                assert code == 0
                assert [line.split()[:3] for line in listed.splitlines()[1:]] == [
                    ["engine", second.url, "yes"],
                    ["engine", first.url, "yes"],
                ]
                code, text = await pegaflow("remove", "engine", "http://127.0.0.1:1", "--yes", "--router", control)
                assert code == 1
                assert "bad_message: no engine http://127.0.0.1:1" in text
                assert await pegaflow("remove", "engine", second.url, "--yes", "--router", control) == (0, "")
                running.process.send_signal(signal.SIGTERM)
                assert await running.process.wait() == 0

    asyncio.run(main())
