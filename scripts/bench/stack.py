"""Real services for benchmarks: one metaserver and tiers on loopback in a folder of their own, and engines without a model."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from pegaflow.common import clock
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages import operate
from pegaflow.connector.bus import RankBus, SchedulerBus
from pegaflow.connector.session import AttachState, LookupAnswer, Member, TierOptions

FINGERPRINT = b"bench-fingerpri!"
LAYOUT = b"bench-layout---!"
STOP_S = 30.0


def keys(count: int) -> list[bytes]:
    """Random keys of the width that sha256 gives."""
    return [FINGERPRINT + os.urandom(32) for _ in range(count)]


class Stack:
    """A context manager; everything is gone at its end. `tiers` are node names; `more`: flags of some of them on top."""

    def __init__(self, tiers: str, pool_bytes: int, *, mover: bool, more: Mapping[str, Sequence[str]] | None = None) -> None:
        self._tiers, self._pool_bytes, self._mover, self._more = tiers, pool_bytes, mover, more or {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Stack:
        self.folder = Path(tempfile.mkdtemp(prefix="pfb-"))
        ports = [_free_port() for _ in range(3)]
        self.metaserver = metaserver = f"tcp://127.0.0.1:{ports[0]}"
        flags = ["--requests", metaserver, "--events", f"tcp://127.0.0.1:{ports[1]}", "--control", f"tcp://127.0.0.1:{ports[2]}"]
        self._start("pegaflow.services.metaserver", *flags, "--log-level", "warning")
        for node in self._tiers:
            flags = ["--node", node, "--runtime-dir", str(self.folder / node), "--pool-dir", f"/dev/shm/pfb-{os.getpid()}"]
            flags += ["--pool-size", str(self._pool_bytes), "--metaserver", metaserver, "--log-level", "warning"]
            flags += [f"--{name}=tcp://127.0.0.1:*" for name in ("requests", "events", "control")]
            flags += ["--mover" if self._mover else "--no-mover", "--ucx-net-devices", "lo"]
            self._start("pegaflow.services.tier", *flags, *self._more.get(node, ()))
        try:
            for node in self._tiers:
                until(f"tier {node}", lambda node=node: self._ready(node))  # type: ignore[misc]
        except BaseException:
            self.close()  # nobody calls __exit__ for what was never entered
            raise
        return self

    def _start(self, module: str, *flags: str) -> None:
        self._processes.append(subprocess.Popen([sys.executable, "-m", module, *flags], stdin=subprocess.DEVNULL))

    @property
    def pids(self) -> list[int]:
        """Metaserver and tiers; a tier's mover is its child."""
        return [process.pid for process in self._processes]

    def _ready(self, node: str) -> bool:
        found = self.dump(node)
        return found.get("state") == "ready" and found["backed_bytes"] == found["pool_bytes"] and found["metaserver_known"]

    def dump(self, node: str) -> dict[str, Any]:
        """The tier's own counts; {} while it does not answer."""

        async def once() -> Any:
            factory = SocketFactory()
            client = RpcClient(factory, asyncio.get_running_loop(), self.endpoint(node))
            try:
                return await client.request(operate.Dump(), 2.0)
            finally:
                client.close()
                factory.close()

        try:
            document: dict[str, Any] = json.loads(asyncio.run(once()).json)
        except PegaflowError:
            return {}
        return document

    def endpoint(self, node: str) -> str:
        return f"ipc://{self.folder / node}/requests.sock"

    def options(self, node: str) -> TierOptions:
        return options(self.folder / node)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process and removes what they left."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(f"/dev/shm/pfb-{os.getpid()}", ignore_errors=True)


def options(runtime_dir: Path) -> TierOptions:
    """Of an engine at the tier that lives there."""
    return TierOptions(f"ipc://{runtime_dir}/requests.sock", runtime_dir, "read_write", 5.0, 30.0)


class Engine:
    """Both buses of a one-rank engine whose pages have `page_bytes`."""

    def __init__(self, options: TierOptions, page_bytes: int, name: str) -> None:
        self.scheduler = SchedulerBus(
            options,
            Member(name, "scheduler", 0, 0, 1, 0, 1),
            FINGERPRINT,
            FINGERPRINT,
            {},
            [LAYOUT],
            [page_bytes],
            clock=clock.now,
        )
        self.rank = RankBus(options, Member(name, "rank", 0, 0, 1, 0, 1), FINGERPRINT, LAYOUT, page_bytes, clock=clock.now)
        self._lookups = 0
        for bus in (self.scheduler, self.rank):
            if bus.wait_attached(30) is not AttachState.ATTACHED:
                raise SystemExit("the engine could not attach to the tier")
        until("both halves know of each other", lambda: self.scheduler._complete)

    def lookup(self, wanted: list[bytes], *, expected: bool = False) -> LookupAnswer:
        """Sends and waits; the caller owns the lease."""
        self._lookups += 1
        if not self.scheduler.lookup(self._lookups, "bench", wanted, [], 20.0, expected):
            raise SystemExit("the tier is gone")
        while True:
            for answer in self.scheduler.drain():
                return answer
            time.sleep(0.00005)

    def close(self) -> None:
        self.rank.close()
        self.scheduler.close()


def until(what: str, check: Callable[[], object], seconds: float = 60.0) -> None:
    """Asks again and again; gives up loudly."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"never came: {what}")
        time.sleep(0.01)


def _free_port() -> int:
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
