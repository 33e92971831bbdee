"""What a process tells of itself and of what it can reach."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest
from pegaflow.common import machine
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.services.reach import reach
from pegaflow.services.tier.disk.speed import BLOCK_BYTES, measure
from pegaflow.services.tier.mover import transports


def test_facts_are_json_and_name_what_is_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    (tmp_path / "open").write_text("x")
    (tmp_path / "open").chmod(0o640)
    (tmp_path / "shut").write_text("x")
    (tmp_path / "shut").chmod(0o600)
    told = json.loads(json.dumps(machine.facts({"pool": tmp_path, "gone": tmp_path / "no"}, ("pyzmq", "no-such-package"))))
    assert told["pid"] == os.getpid() and told["wall_ns"] > 0
    assert told["versions"]["pyzmq"] and "no-such-package" not in told["versions"]
    pool, gone = told["paths"]
    assert (pool["mode"], pool["open_files"]) == ("0750", ["open 0640"])
    assert pool["uid"] == os.getuid() and pool["total_bytes"] >= pool["free_bytes"]
    assert gone["code"] == "No such file or directory"


def test_the_disk_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    found = measure(tmp_path, BLOCK_BYTES + 1)
    assert found["bytes"] == BLOCK_BYTES
    assert found["write_bytes_per_s"] > 0 and found["read_bytes_per_s"] > 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        measure(tmp_path / "no", BLOCK_BYTES)


def test_connections_of_a_process_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = transports.in_use(os.getpid())["tcp"]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            assert transports.in_use(os.getpid())["tcp"] == before + 2
        assert client.fileno() > 0
    assert transports.in_use(2**22 + 1) == {}  # above any process id


async def http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def test_reach_says_why_not(tmp_path: Path) -> None:
    async def main() -> None:
        factory = SocketFactory()
        greeting, tcp = factory.bound_xpub("tcp://127.0.0.1:*")
        local, _ = factory.router(f"ipc://{tmp_path}/s")
        silent = socket.create_server(("127.0.0.1", 0))
        other = await asyncio.start_server(http, "127.0.0.1", 0)
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoints = {
                tcp: "",
                f"{tcp}#{'0' * 64}": "",
                f"ipc://{tmp_path}/s": "",
                f"ipc://{tmp_path}/no": "not_here",
                f"ipc://{tmp_path}/s/no": "not_here",
                f"tcp://127.0.0.1:{unused.getsockname()[1]}": "refused",
                f"tcp://127.0.0.1:{silent.getsockname()[1]}": "silent",
                f"tcp://127.0.0.1:{other.sockets[0].getsockname()[1]}": "not_zmq",
                "tcp://127.0.0.1:x": "bad_endpoint",
                "udp://h": "bad_endpoint",
            }
            found = await reach(list(endpoints), 0.5)
        assert dict(zip(endpoints, found.codes, strict=True)) == endpoints
        assert len(found.micros) == len(endpoints)
        other.close()
        await other.wait_closed()
        silent.close()
        for sock in (greeting, local):
            sock.close()
        factory.close()

    asyncio.run(main())
