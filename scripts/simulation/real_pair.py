"""The script of the validation on real processes: scripts/bench/stack.py, with a plain blocking client for lookups."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from pegaflow.common import clock
from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.messages import loads, operate
from pegaflow.common.wire.messages.catalogue import SEALED, Locate, NodeList, Nodes
from pegaflow.services.tier.service import HELLO_S
from stack import Engine, Stack, keys, until

from simulation.pair import IDLE_S, METASERVER_COUNTS, PAGE_BYTES, PAUSE_S, POOL_BYTES, TIER_COUNTS, picked
from simulation.tally import percentile

_TICKS = os.sysconf("SC_CLK_TCK")
PINGS = 200
WINDOW = 32
SIGN_S = 0.02
LOOK_S = 0.002


class RealPair:
    """A context manager around two tiers, a metaserver and two engines. Traffic on loopback only."""

    def __enter__(self) -> RealPair:
        self._stack = Stack("ab", POOL_BYTES, mover=True)
        self._stack.__enter__()
        self._engines = {node: Engine(self._stack.options(node), PAGE_BYTES, node) for node in "ab"}
        self._factory = SocketFactory()
        self._socks = {node: self._factory.dealer(self._stack.endpoint(node)) for node in "ab"}
        self._saved = 0
        self._number = 1 << 40  # far above the scheduler's own: its `alive` says nothing about these
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._factory.close()
        for engine in self._engines.values():
            engine.close()
        self._stack.close()

    @property
    def now(self) -> float:
        return time.monotonic()

    def _ask(self, node: str, message: Any) -> Any:
        self._number += 1
        self._socks[node].send_multipart(encode(message, RequestHeader(self._number, 10_000, 0)))
        return open_envelope(self._socks[node].recv_multipart(), ReplyHeader).message()

    def ping(self) -> float:
        """Seconds of a round trip to a tier that has slept: the median."""
        times = []
        for _ in range(PINGS):
            began = time.perf_counter()
            self._ask("b", operate.Ping())
            times.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
        return percentile(times, 0.5)

    def keys(self, count: int) -> list[bytes]:
        return keys(count)

    def save(self, wanted: list[bytes]) -> None:
        engine, count = self._engines["a"], len(wanted)
        ref = engine.scheduler.publish_intent(wanted, [16] * count, [0] * count, ["v"] * count, 0)
        grant = engine.rank.take_grant(ref, clock.now() + 10) if ref is not None else None
        if grant is None:
            raise SystemExit("no grant")
        engine.rank.written(grant, list(grant.positions))
        self._saved += count

    def lookup(self, node: str, wanted: list[bytes]) -> float:
        attached = self._engines[node].scheduler._attached
        if attached is None:
            raise SystemExit("not attached")
        ask = loads.Lookup(attached.session, attached.token, self._number + 1, "v", wanted, [], 5000, True)
        began = time.perf_counter()
        hits = self._ask(node, ask)
        ended = time.perf_counter()
        if not isinstance(hits, loads.Hits) or hits.full != len(wanted):
            raise SystemExit(f"not found: {hits}")
        self._ask(node, loads.Release(attached.session, attached.token, u64s([hits.lease])))
        time.sleep(PAUSE_S)
        return ended - began

    def locates(self, wanted: list[bytes], count: int) -> None:
        """Many at once, from one client that keeps WINDOW on their way."""
        sock = self._factory.dealer(self._stack.metaserver)
        sent = 0
        for got in range(count):
            while sent < min(count, got + WINDOW):
                sock.send_multipart(encode(Locate("v", wanted, 0, False), RequestHeader(sent + 1, 30_000, 0)))
                sent += 1
            located = open_envelope(sock.recv_multipart(), ReplyHeader).message()
            if located.states != bytes([SEALED]) * len(wanted):
                raise SystemExit("the metaserver does not know what was saved")
        sock.close(0)

    def saves(self, batches: list[list[bytes]]) -> None:
        """Intents as fast as they go, then all words; until the metaserver's clone has everything."""
        engine, refs = self._engines["a"], []
        for wanted in batches:
            count = len(wanted)
            owners = [f"v{self._number}"] * count
            self._number += 1
            while (ref := engine.scheduler.publish_intent(wanted, [16] * count, [0] * count, owners, 0)) is None:
                time.sleep(0.0005)
            refs.append(ref)
        grants = [engine.rank.take_grant(ref, clock.now() + 10) for ref in refs]
        for grant in grants:
            if grant is None:
                raise SystemExit("no grant")
            engine.rank.written(grant, list(grant.positions))
        total = sum(map(len, batches))
        self._saved += total
        until("everything is sealed", lambda: self._stack.dump("a")["announced"]["sealed"] >= self._saved)
        time.sleep(0.2)

    def restart(self) -> tuple[float, float]:
        """Killed, not ended; its beginning as a process, which nothing simulates, is not counted."""
        time.sleep(random.uniform(0.0, HELLO_S))  # so that the tiers' hellos fall anywhere
        process = self._stack._processes[0]
        process.kill()
        process.wait()
        self._stack._processes[0] = subprocess.Popen(process.args, stdin=subprocess.DEVNULL)
        until("a metaserver that answers", lambda: self._states(SIGN_S) is not None)
        back = known = time.monotonic()
        while len(states := self._states(10.0) or []) < 2 or "syncing" in states:
            if not states:
                known = time.monotonic()
            time.sleep(LOOK_S)
        return known - back, time.monotonic() - back

    def _states(self, seconds: float) -> list[str] | None:
        """Of the nodes that the metaserver knows; None: it does not answer in time."""
        sock = self._factory.dealer(self._stack.metaserver)
        try:
            sock.send_multipart(encode(Nodes(), RequestHeader(1, 10_000, 0)))
            if not sock.poll(int(seconds * 1e3)):
                return None
            found = open_envelope(sock.recv_multipart(), ReplyHeader).message()
        finally:
            sock.close(0)
        if not isinstance(found, NodeList):
            raise SystemExit(f"no list of nodes: {found}")
        return list(found.states)

    def idle(self) -> None:
        time.sleep(IDLE_S)

    def busy(self) -> dict[str, float]:
        """CPU seconds of each process, all its threads; not of movers."""
        names = ("metaserver", "tier a", "tier b")
        return {name: _cpu_s(pid) for name, pid in zip(names, self._stack.pids, strict=True)}

    def counts(self) -> dict[str, dict[str, int]]:
        found = {f"tier {node}": picked(self._stack.dump(node)["counts"], TIER_COUNTS) for node in "ab"}
        document = asyncio.run(_dump(self._stack.metaserver))
        return {"metaserver": picked(document["counts"], METASERVER_COUNTS), **found}

    def settled(self) -> None:
        """Both tiers hold everything, nobody waits: what comes next is the script's."""
        until("quiet", lambda: all(self._stack.dump(node).get("lookups") == 0 for node in "ab"))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def _dump(endpoint: str) -> dict[str, Any]:
    factory = SocketFactory()
    client = RpcClient(factory, asyncio.get_running_loop(), endpoint)
    try:
        answer = await client.request(operate.Dump(), 5.0)
        document: dict[str, Any] = json.loads(answer.json)
        return document
    finally:
        client.close()
        factory.close()
