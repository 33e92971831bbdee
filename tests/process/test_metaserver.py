"""The real metaserver process: start, hello, kill -9, restart, a port in use, and a clean end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import run
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.catalogue import SEALED, Locate
from pegaflow.common.wire.messages.operate import Ping, Pong
from scripted_tier import ScriptedTier

Loop = asyncio.AbstractEventLoop
KEY = b"a key"


class Metaserver:
    """A process; `line` waits for an event in its log."""

    def __init__(self, folder: Path, *more: str) -> None:
        names = [f"--{name}=ipc://{folder}/{name}" for name in ("requests", "events", "control")]
        command = [sys.executable, "-m", "pegaflow.services.metaserver", *names, *more]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PEGAFLOW_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)

    def line(self, event: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        for text in self.process.stderr:
            fields: dict[str, Any] = json.loads(text)
            if fields["event"] == event:
                return fields
        raise AssertionError(f"it ended with {self.process.wait()} and never said {event}")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(30)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture
def started() -> Iterator[list[Metaserver]]:
    """Whatever a test leaves running is killed, by its own pid."""
    running: list[Metaserver] = []
    yield running
    for metaserver in running:
        if metaserver.process.poll() is None:
            metaserver.end(signal.SIGKILL)


def start(started: list[Metaserver], folder: Path, *more: str) -> Metaserver:
    metaserver = Metaserver(folder, *more)
    started.append(metaserver)
    return metaserver


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_starts_and_ends_cleanly(started: list[Metaserver], tmp_path: Path, number: signal.Signals) -> None:
    metaserver = start(started, tmp_path)
    assert metaserver.line("started")["requests"] == f"ipc://{tmp_path}/requests"
    assert metaserver.end(number) == 0


def test_after_kill_it_is_whole_again_without_restarting_tiers(started: list[Metaserver], tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        first = start(started, tmp_path)
        first.line("started")
        requests = f"ipc://{tmp_path}/requests"
        tier = ScriptedTier(factory, loop, "a", 1, requests)
        tier.change({KEY: SEALED})
        client = RpcClient(factory, loop, requests)
        answer = await client.request(Locate("me", [KEY], 20_000, True), 25.0)
        assert (list(answer.states), list(answer.nodes)) == ([SEALED], ["a"])
        epoch = client.peer_epoch

        assert first.end(signal.SIGKILL) == -signal.SIGKILL
        with pytest.raises(RemoteError):
            await client.request(Ping(), 0.2)
        start(started, tmp_path).line("started")
        answer = await client.request(Locate("me", [KEY], 20_000, True), 25.0)
        assert (list(answer.states), list(answer.nodes)) == ([SEALED], ["a"])
        assert client.peer_epoch != epoch
        client.close()
        tier.close()

    run(test)


def test_a_port_in_use_ends_a_second_one_and_leaves_the_first_alone(started: list[Metaserver], tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        first = start(started, tmp_path)
        first.line("started")
        second = start(started, tmp_path)
        complaint = second.line("cannot_start")
        assert complaint["code"] == "port_in_use" and str(tmp_path) in complaint["text"]
        assert second.wait() == 75
        client = RpcClient(factory, loop, f"ipc://{tmp_path}/requests")
        assert isinstance(await client.request(Ping(), 20.0), Pong)
        client.close()

    run(test)


def test_a_tcp_port_in_use(started: list[Metaserver], tmp_path: Path) -> None:
    first = start(started, tmp_path, "--requests=tcp://127.0.0.1:*")
    taken = first.line("started")["requests"]
    second = start(started, tmp_path / "2", f"--requests={taken}")
    complaint = second.line("cannot_start")
    assert complaint["code"] == "port_in_use" and taken in complaint["text"]
    assert second.wait() == 75


def test_nothing_of_a_tier_comes_behind_its_goodbye(started: list[Metaserver], tmp_path: Path) -> None:
    """A goodbye that is not answered at once: a hello behind it would be refused, as that of a life that was left behind."""
    metaserver = start(started, tmp_path)
    requests = metaserver.line("started")["requests"]
    pools = Path(f"/dev/shm/pegaflow-test-{os.getpid()}")
    flags = ["--node", "a", "--runtime-dir", str(tmp_path / "a"), "--pool-dir", str(pools), "--pool-size", "16MiB"]
    tier = subprocess.Popen([sys.executable, "-m", "pegaflow.services.tier", *flags, "--metaserver", requests, "--no-mover"])
    try:
        assert metaserver.line("node_up")["peer"] == "a"
        metaserver.process.send_signal(signal.SIGSTOP)
        tier.terminate()
        assert tier.wait(30) == 0
    finally:
        tier.kill()
        shutil.rmtree(pools, ignore_errors=True)
    metaserver.process.send_signal(signal.SIGCONT)
    metaserver.process.send_signal(signal.SIGTERM)
    assert metaserver.process.stderr is not None
    said = [json.loads(text)["event"] for text in metaserver.process.stderr]
    assert metaserver.wait() == 0
    assert "refused" not in said


def test_bad_configuration_is_said_before_anything_starts(started: list[Metaserver], tmp_path: Path) -> None:
    metaserver = start(started, tmp_path, "--events=nonsense")
    assert metaserver.process.stderr is not None
    assert "bad_config" in metaserver.process.stderr.readline()
    assert metaserver.wait() == 78


def test_an_address_of_another_machine_is_wrong_configuration(started: list[Metaserver], tmp_path: Path) -> None:
    metaserver = start(started, tmp_path, "--requests=tcp://203.0.113.1:7400", "--allow-plaintext-network")
    assert metaserver.line("cannot_start")["code"] == "bad_endpoint"
    assert metaserver.wait() == 78, "to start it again would not mend it"


def test_health_and_metrics(started: list[Metaserver], tmp_path: Path, unused_port: int) -> None:
    metaserver = start(started, tmp_path, f"--health-port={unused_port}")
    metaserver.line("started")
    with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/ready") as response:
        assert json.load(response) == {"ready": True, "reasons": []}
    with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/metrics") as response:
        assert b"pegaflow_metaserver_waiters 0.0" in response.read()
    assert metaserver.end(signal.SIGTERM) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{unused_port}/ready")


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_tool_prints_a_table_and_says_what_is_unreachable(started: list[Metaserver], tmp_path: Path) -> None:
    start(started, tmp_path).line("started")
    tool = [sys.executable, "-m", "pegaflow.services.cli"]
    status = [*tool, "status", "--timeout=8s", f"--metaserver=ipc://{tmp_path}/requests"]
    done = subprocess.run(status, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    head, row = done.stdout.splitlines()
    assert head.split()[:3] == ["SERVICE", "NODE", "STATE"] and row.split()[:3] == ["metaserver", "metaserver", "ready"]
    done = subprocess.run(
        [*status, f"--tier=ipc://{tmp_path}/nobody", "--timeout=8s", "-o", "json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [(one["service"], one["reachable"]) for one in found["rows"]] == [("metaserver", True), ("tier", False)]
    assert [one["endpoint"] for one in found["wrong"]] == [f"ipc://{tmp_path}/nobody"]
    done = subprocess.run([*tool, "status", "--metaserver=nonsense"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "nonsense" in done.stderr
    tap = [*tool, "monitor", f"--events=ipc://{tmp_path}/events"]
    done = subprocess.run([*tap, "n", "-n", "2", "-o", "jsonl"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["topic"] for line in done.stdout.splitlines()} == {"n"} and len(done.stdout.splitlines()) == 2
    done = subprocess.run([*tap, "nothing", "-n", "1", "--for", "200ms"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
