"""The router's health on a port of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from router_process import router, until_ready
from scripted_engine import ScriptedEngine


def test_health_has_a_port_of_its_own(tmp_path: Path, unused_port: int) -> None:
    async def main() -> None:
        file = tmp_path / "keys"
        file.write_text("sk-a")
        engine = ScriptedEngine()
        argv = ("--api-keys-file", str(file), "--health-port", str(unused_port))
        async with engine.running(), router("--engine", engine.url, *argv) as running, aiohttp.ClientSession() as session:
            await until_ready(session, running.url)
            for path in ("/health", "/ready", "/metrics", "/version"):
                async with session.get(f"http://127.0.0.1:{unused_port}{path}") as response:
                    assert response.status == 200
            async with session.post(f"http://127.0.0.1:{unused_port}/v1/chat/completions", json={}) as response:
                assert response.status == 405

    asyncio.run(main())


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
