"""Whatever is wrong with a process, it says so: /health and /metrics answer, and the watch restarts what does not live."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from cluster import Cluster, Engine, ask, free_port, make_keys, until
from fault_control import FaultControl
from metrics_tables import documented
from pegaflow.common.wire.messages.operate import NodeDrain

from deployment import plan as planning
from deployment.plan import Plan
from deployment.ports import from_system
from deployment.supervision import WATCH, Supervision

pytestmark = pytest.mark.timeout(150)

HANG = "delay=3000"
DISK = ("--disk-size", "16MiB", "--evict-high", "0.2", "--evict-low", "0.1", "--drain-timeout", "500ms")


def get(port: int, path: str) -> tuple[int, str]:
    """Status 0: no answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def value(port: int, metric: str) -> float:
    def rendered() -> list[str]:
        status, text = get(port, "/metrics")
        assert status == 200
        return re.findall(rf"^{metric} (\S+)$", text, re.MULTILINE)

    (found,) = until(f"a loop that renders {metric}", rendered)
    return float(found)


def child(pid: int) -> int:
    (found,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found)


@pytest.fixture
def control() -> Iterator[FaultControl]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    with FaultControl(folder) as made:
        yield made


def test_a_wedged_data_path_does_not_keep_a_tier_from_answering(control: FaultControl) -> None:
    folder, port = control.marks.parent, free_port()
    options = ("--disk-dir", str(folder / "disk"), *DISK, "--health-port", str(port))
    with Cluster(folder, "a", pool="16MiB", more=options) as cluster:
        cluster.wait_ready()
        mover = child(cluster.tiers["a"].process.pid)
        os.kill(mover, signal.SIGSTOP)
        engine = Engine(cluster, "a").attached()
        control.arm(f"tier.disk_write.before_pages@1:{HANG}")
        engine.save(make_keys(80))
        until("the disk is seen to hang", lambda: value(port, "pegaflow_tier_disk_hanging") == 1)
        assert get(port, "/health") == (200, '{"state": "ready"}')
        assert get(port, "/ready")[0] == 200 and get(port, "/version")[0] == 200
        assert value(port, "pegaflow_tier_movers") == 1, "it stands still, and is not known to be dead"
        with contextlib.suppress(ProcessLookupError):
            os.kill(mover, signal.SIGCONT)
        cluster.tiers["a"].kill()
        engine.close()


@pytest.fixture
def supervised(control: FaultControl, tmp_path: Path) -> Iterator[tuple[Supervision, Plan]]:
    config = tmp_path / "pegaflow.toml"
    config.write_text('[watch]\nfailures = 1\ntimeout = "4s"\n')
    plan = planning.make(tmp_path, from_system(), pool_size="16MiB", config=config)
    supervision = Supervision(plan)
    try:
        supervision.start(["metaserver", "tier-a", "router", WATCH])
        yield supervision, plan
    finally:
        supervision.stop()


def log_of_watch(supervision: Supervision) -> list[dict[str, Any]]:
    path = supervision.log(WATCH)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_watch_restarts_what_runs_and_does_not_live(supervised: tuple[Supervision, Plan], control: FaultControl) -> None:
    supervision, plan = supervised
    ports = plan.ports
    health = {
        "Tier": ports.tier_a_health,
        "Metaserver": ports.metaserver_health,
        "Router": ports.router_health,
        "Watch": ports.watch_health,
    }
    until("tier a", lambda: get(ports.tier_a_health, "/ready")[0] == 200)
    ask(f"ipc://{plan.runtime}/a/control.sock", NodeDrain())
    tables = documented()
    for heading, port in health.items():
        until(heading, lambda port=port: get(port, "/health")[0] == 200)  # type: ignore[misc]

        def exposed(port: int = port) -> set[str]:
            names = re.findall(r"^# TYPE (pegaflow_\w+) ", get(port, "/metrics")[1], re.MULTILINE)
            return {name for name in names if not name.endswith("_created")}

        shared = set(tables["Every service"])
        if heading == "Watch":
            shared -= {"pegaflow_process_loop_lag_seconds"}  # it has no loop
        wanted = set(tables[heading]) | shared
        until(f"a loop that renders for {heading}", exposed)  # the first scrape may be of a loop that has not begun
        assert exposed() == wanted
    assert "pegaflow_router_requests_total" in get(ports.router, "/metrics")[1]

    def alive(name: str) -> str:
        return f'pegaflow_watch_checks_total{{program="{name}",result="alive"}}'

    names = ("metaserver", "tier-a", "router")
    until("it has seen them alive", lambda: all(value(ports.watch_health, re.escape(alive(name))) > 0 for name in names))
    pids = {name: supervision.process(name).pid for name in names}
    os.kill(pids["metaserver"], signal.SIGSTOP)
    control.arm(f"tier.hello.before_sent@1:{HANG}")
    for name in ("metaserver", "tier-a"):
        until(f"{name} is another one", lambda name=name: supervision.process(name).pid not in (0, pids[name]), 60)  # type: ignore[misc]
    until("well again", lambda: get(ports.tier_a_health, "/health")[0] == get(ports.metaserver_health, "/ready")[0] == 200)
    until("its next life drains too", lambda: "draining" in get(ports.tier_a_health, "/ready")[1])
    assert get(ports.router, "/ready")[0] == 503
    told = [line for line in log_of_watch(supervision) if line["event"] == "restarting"]
    assert sorted(line["program"] for line in told) == ["metaserver", "tier-a"], "once each, and nobody who is merely not ready"
    (why,) = next(line["why"] for line in told if line["program"] == "tier-a")
    assert "503" in why and "loop_stuck" in why
    assert supervision.process("router").pid == pids["router"]


def test_a_watch_whose_address_cannot_be_had_says_so() -> None:
    environ = os.environ | {"SUPERVISOR_SERVER_URL": "unix:///nobody"}
    command = [sys.executable, "-m", "pegaflow.services.watch", "--program", "a=http://127.0.0.1:1/health", "--health-port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for more, code, word in (((), 75, "address_in_use"), (("--health-host", "203.0.113.1"), 78, "bad_endpoint")):
            done = subprocess.run([*command, str(port), *more], env=environ, capture_output=True, text=True, timeout=60)
            assert done.returncode == code, done.stderr
            told = json.loads(done.stderr.splitlines()[-1])
            assert (told["event"], told["code"]) == ("cannot_start", word) and "Traceback" not in done.stderr
