"""Real services for tests: processes on loopback, ended by pid, waited for by asking them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from keys import Keys
from pegaflow.common import clock
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.roles import Role
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages import operate
from pegaflow.connector.bus import RankBus, SchedulerBus
from pegaflow.connector.session import AttachState, Grant, IntentRef, LookupAnswer, Member, TierOptions

PAGE_BYTES = 3 * GRANULE
FINGERPRINT = b"f" * 16
LAYOUT = b"l" * 16
T = TypeVar("T")


_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, below the range from which the kernel picks for its own; none twice."""
    while True:
        port = random.randrange(20_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port


def until(what: str, check: Callable[[], T | None], seconds: float = 30.0) -> T:
    """Asks again and again; fails after `seconds`, which is only there so that a broken build ends."""
    end = time.monotonic() + seconds
    while True:
        got = check()
        if got:
            return got
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.005)


def ask(endpoint: str, message: Any, seconds: float = 5.0, ring: Keyring | None = None) -> Any:
    """One request from a socket of its own."""

    async def once() -> Any:
        factory = SocketFactory(ring)
        client = RpcClient(factory, asyncio.get_running_loop(), endpoint)
        try:
            return await client.request(message, seconds)
        finally:
            client.close()
            factory.close()

    return asyncio.run(once())


def dump(endpoint: str) -> dict[str, Any]:
    """A service's dump, {} while it does not answer."""
    try:
        document: dict[str, Any] = json.loads(ask(endpoint, operate.Dump(), 1.0).json)
    except PegaflowError:
        return {}
    return document


def told(endpoint: str) -> dict[str, Any]:
    """The dump of a service that lives; if it stands still for a moment, it is asked again."""
    return until(f"an answer of {endpoint}", lambda: dump(endpoint))


class Process:
    """One service. `kill` is SIGKILL; `stop` is SIGTERM and returns the exit code."""

    def __init__(self, module: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.command = [sys.executable, "-m", module, *arguments]
        self.env = {**os.environ, **(env or {})}
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)


FACTORS = {
    "model": "test",
    "block_size": "32",
    "hash_block_size": "16",
    "hash_algorithm": "sha256_cbor",
    "none_hash": "0f" * 32,
}


class Cluster:
    """One metaserver and named tiers on loopback. A context manager; everything is gone at its end."""

    def __init__(
        self,
        folder: Path,
        tiers: str = "ab",
        mover: bool = True,
        pool: str = "64MiB",
        more: Sequence[str] = (),
        own: Mapping[str, Sequence[str]] = MappingProxyType({}),
        keys: Keys | None = None,
        router: bool = False,
    ) -> None:
        """`more`: options of every tier; `own`: of one, by its node; `keys`: everybody has one; `router`: there is one, idle."""
        self.folder = folder
        self.pools = Path(f"/dev/shm/pegaflow-test-{os.getpid()}")
        self.metaserver_endpoint = f"tcp://127.0.0.1:{free_port()}"
        arguments = ["--requests", self.metaserver_endpoint]
        own = {node: list(flags) for node, flags in own.items()}
        self.router_endpoint = f"tcp://127.0.0.1:{free_port()}"
        router_flags = ["--control", self.router_endpoint, "--engine", "http://127.0.0.1:9", "--port", "0"]
        if keys is not None:
            files = {node: keys.file(Role.TIER, node) for node in tiers}
            ring = Keyring(Role.METASERVER, file := keys.file(Role.METASERVER), keys.allowed)
            arguments += ["--curve-key-file", str(file), "--curve-allowed", str(keys.allowed)]
            self.metaserver_endpoint += f"#{ring.public_hex}"
            if router:
                routers = Keyring(Role.ROUTER, file := keys.file(Role.ROUTER), keys.allowed)
                router_flags += ["--curve-key-file", str(file), "--curve-allowed", str(keys.allowed)]
                self.router_endpoint += f"#{routers.public_hex}"
            for node, file in files.items():
                own[node] = [*own.get(node, ()), "--curve-key-file", str(file), "--curve-allowed", str(keys.allowed)]
        for name in ("events", "control"):
            arguments += [f"--{name}", f"tcp://127.0.0.1:{free_port()}"]
        self.metaserver = Process("pegaflow.services.metaserver", *arguments, "--health-port", "0")
        self.others = [Process("pegaflow.services.router", *router_flags)] if router else []
        self.tiers: dict[str, Process] = {}
        for node in tiers:
            flags = [
                "--node",
                node,
                "--runtime-dir",
                str(self.runtime(node)),
                "--pool-dir",
                str(self.pools),
            ]
            flags += ["--pool-size", pool, "--metaserver", self.metaserver_endpoint]
            for name in ("requests", "events", "control"):
                flags += [f"--{name}", "tcp://127.0.0.1:*"]
            flags += ["--mover" if mover else "--no-mover", "--ucx-net-devices", "lo", *more]
            flags += own.get(node, ())
            self.tiers[node] = Process("pegaflow.services.tier", *flags)

    def pool_files(self, node: str) -> list[Path]:
        """Pool and slot table of a node."""
        return sorted(path for path in Path(f"/dev/shm/pegaflow-test-{os.getpid()}", node).iterdir() if path.name != "lock")

    def forget_pool(self, node: str) -> None:
        """Its next life starts empty."""
        for path in self.pool_files(node):
            path.unlink()

    def runtime(self, node: str) -> Path:
        return self.folder / node

    def disk(self, node: str) -> Path:
        """Where its disk level lies, if `--disk-dir` is `disk` in the folder."""
        return self.folder / "disk" / node

    def endpoint(self, node: str) -> str:
        return f"ipc://{self.runtime(node)}/requests.sock"

    def control(self, node: str) -> str:
        return f"ipc://{self.runtime(node)}/control.sock"

    def wait_ready(self) -> None:
        for node in self.tiers:
            until(f"tier {node}", lambda node=node: dump(self.endpoint(node)).get("state") == "ready")  # type: ignore[misc]
            until(f"metaserver knows {node}", lambda node=node: dump(self.endpoint(node)).get("metaserver_known"))  # type: ignore[misc]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in [*self.tiers.values(), *self.others, self.metaserver]:
            process.process.send_signal(signal.SIGCONT)  # a stopped process cannot end
            process.stop()
        shutil.rmtree(self.pools, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


class Engine:
    """An engine without a model: both buses of a one-rank vLLM, writing and reading pages whose bytes follow from their key."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        name: str = "engine",
        mode: str = "read_write",
        fingerprint: bytes = FINGERPRINT,
        factors: Mapping[str, str] = FACTORS,
    ) -> None:
        options = TierOptions(cluster.endpoint(node), cluster.runtime(node), mode, 2.0, 5.0)
        self.scheduler = SchedulerBus(
            options,
            Member(name, "scheduler", 0, 0, 1, 0, 1),
            b"b" * 16,
            fingerprint,
            factors,
            [LAYOUT],
            [PAGE_BYTES],
            clock=clock.now,
        )
        self.rank = RankBus(options, Member(name, "rank", 0, 0, 1, 0, 1), b"b" * 16, LAYOUT, PAGE_BYTES, clock=clock.now)
        self._lookups = 0

    def attached(self) -> Engine:
        assert self.scheduler.wait_attached(30) is AttachState.ATTACHED
        assert self.rank.wait_attached(30) is AttachState.ATTACHED
        return self

    def intent(self, keys: list[bytes], request: str = "r") -> IntentRef:
        """Published once the scheduler half knows that its rank is attached too."""
        columns = [32] * len(keys), [0] * len(keys), [request] * len(keys)
        return until("an intent", lambda: self.scheduler.publish_intent(keys, *columns, 0))

    def write(self, ref: IntentRef, keys: list[bytes]) -> Grant:
        """Copies the granted pages and says so."""
        grant = self.rank.take_grant(ref, clock.now() + 10)
        assert grant is not None
        view = self.rank.begin_copy(ref.session)
        assert view is not None
        for position, slot in zip(grant.positions, grant.slots, strict=True):
            view.memory[slot * GRANULE : slot * GRANULE + PAGE_BYTES] = page_bytes(keys[position])
        self.rank.end_copy()
        self.rank.written(grant, list(grant.positions))
        return grant

    def save(self, keys: list[bytes], request: str = "r") -> Grant:
        return self.write(self.intent(keys, request), keys)

    def lookup(
        self,
        keys: list[bytes],
        tails: list[bytes] | None = None,
        wait_s: float = 5.0,
        expected: bool = False,
        request: str = "r",
    ) -> LookupAnswer:
        """Asks and waits for the answer; the caller owns the lease."""
        self._lookups += 1
        # Not while the tier has been silent for a moment, as it is when the machine stands still.
        until("it is sent", lambda: self.scheduler.lookup(self._lookups, request, keys, tails or [], wait_s, expected))
        answers = until("an answer", self.scheduler.drain)
        assert [answer.lookup for answer in answers] == [self._lookups]
        return answers[0]

    def load(self, answer: LookupAnswer) -> list[bytes]:
        """The pages under the lease, each checked to have stood still; the lease is over afterwards."""
        assert answer.lease is not None
        self.scheduler.loading(answer.lease)
        view = self.rank.begin_copy(answer.lease.session)
        assert view is not None
        pages = []
        for slot, generation in zip(answer.slots, answer.generations, strict=True):
            assert view.generation(slot) == generation
            pages.append(bytes(view.memory[slot * GRANULE : slot * GRANULE + PAGE_BYTES]))
            assert view.generation(slot) == generation
        self.rank.end_copy()
        self.scheduler.release(answer.lease)
        return pages

    def close(self) -> None:
        self.rank.close()
        self.scheduler.close()


def make_keys(count: int, salt: int = 0) -> list[bytes]:
    return [FINGERPRINT + bytes((salt, i // 256, i % 256)) + b"k" * 29 for i in range(count)]


def page_bytes(key: bytes) -> bytes:
    """What a page of this key holds."""
    return (key * (PAGE_BYTES // len(key) + 1))[:PAGE_BYTES]
