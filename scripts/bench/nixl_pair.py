#!/usr/bin/env python3
"""READ throughput between two processes: two bare NIXL agents and two of our movers, in turns, on the same machine.

    python scripts/bench/nixl_pair.py [--repeats 15] [--total BYTES] [--tcp] [--adjacent] [--page BYTES …] [--json FILE]

The bare pair is one READ at a time: descriptors from numpy arrays, post, then poll without a pause. The movers' time runs
from `MoverPool.read` to `on_done` in the parent, so it includes the private socket, the checks and the pauses between
looks. Pages go to other places than they come from, in random order, so none can be joined; `--adjacent` keeps the order,
which the movers may turn into larger descriptors.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pegaflow.services.tier.mover.child import environment
from pegaflow.services.tier.mover.pool import MoverPool

PAGES_BYTES = (64 << 10, 1 << 20, 2880 << 10)
GOAL = 0.9


@dataclass(frozen=True, slots=True)
class Pairing:
    """Medians in GB/s (10⁹ bytes) of one page size, measured in turns."""

    transport: str
    page_bytes: int
    pages: int
    order: str
    bare_gb_s: float
    movers_gb_s: float
    ratio: float
    repeats: int


def measure(page_bytes: int, pages: int, repeats: int, *, ucx: Mapping[str, str] | None = None, adjacent: bool = False) -> float:
    """Median GB/s of READs of `pages` pages between two bare NIXL agents."""
    return asyncio.run(_measure("bare", page_bytes, pages, repeats, ucx or {}, adjacent))


def measure_movers(
    page_bytes: int, pages: int, repeats: int, *, ucx: Mapping[str, str] | None = None, adjacent: bool = False
) -> float:
    """Median GB/s of the same READs through two MoverPools."""
    return asyncio.run(_measure("movers", page_bytes, pages, repeats, ucx or {}, adjacent))


def compare(
    page_bytes: int, pages: int, repeats: int, *, ucx: Mapping[str, str] | None = None, adjacent: bool = False
) -> Pairing:
    """Both ways in turns; the ratio is the median of the ratios of neighbouring turns, so that a slow second hits both."""
    return asyncio.run(_compare(page_bytes, pages, repeats, ucx or {}, adjacent))


async def _measure(way: str, page: int, pages: int, repeats: int, ucx: Mapping[str, str], adjacent: bool) -> float:
    pair = _bare_pair if way == "bare" else _mover_pair
    async with pair(page * pages, ucx) as once:
        await once(page, _order(pages, adjacent, 0))
        times = [await once(page, _order(pages, adjacent, turn)) for turn in range(repeats)]
    return page * pages / statistics.median(times) / 1e9


async def _compare(page: int, pages: int, repeats: int, ucx: Mapping[str, str], adjacent: bool) -> Pairing:
    total = page * pages
    bare: list[float] = []
    movers: list[float] = []
    async with _bare_pair(total, ucx) as bare_once, _mover_pair(total, ucx) as movers_once:
        for turn in range(-1, repeats):
            order = _order(pages, adjacent, turn)
            # Who goes first changes, because the second finds the caches as the first left them.
            if turn % 2:
                mover_s, bare_s = await movers_once(page, order), await bare_once(page, order)
            else:
                bare_s, mover_s = await bare_once(page, order), await movers_once(page, order)
            # The first turn connects and touches every page for the first time.
            if turn >= 0:
                bare.append(bare_s)
                movers.append(mover_s)
    return Pairing(
        transport=ucx.get("UCX_TLS", "default"),
        page_bytes=page,
        pages=pages,
        order="adjacent" if adjacent else "scattered",
        bare_gb_s=round(total / statistics.median(bare) / 1e9, 3),
        movers_gb_s=round(total / statistics.median(movers) / 1e9, 3),
        ratio=round(statistics.median(b / m for b, m in zip(bare, movers, strict=True)), 3),
        repeats=repeats,
    )


def _order(pages: int, adjacent: bool, seed: int) -> list[int]:
    order = list(range(pages))
    if not adjacent:
        random.Random(seed).shuffle(order)
    return order


# ---- two movers


class _Once:
    """Calls are seconds of one READ."""

    async def __call__(self, page: int, order: Sequence[int]) -> float:
        raise NotImplementedError


class _MoverOnce(_Once):
    def __init__(self, owner: MoverPool, reader: MoverPool, size: int, done: asyncio.Queue[tuple[int, str, str]]) -> None:
        self._owner, self._reader, self._size, self._done = owner, reader, size, done
        self._job = 0

    async def __call__(self, page: int, order: Sequence[int]) -> float:
        local = array("Q", range(0, len(order) * page, page))
        remote = array("Q", (at * page for at in order))
        lengths = array("I", [page]) * len(order)
        self._job += 1
        owner = self._owner
        began = time.perf_counter()
        self._reader.read(self._job, "owner/1", owner.metadata, owner.base, self._size, local, remote, lengths, b"bench")
        _, outcome, text = await self._done.get()
        took = time.perf_counter() - began
        if outcome != "done":
            raise RuntimeError(f"{outcome}: {text}")
        return took


@asynccontextmanager
async def _mover_pair(size: int, ucx: Mapping[str, str]) -> AsyncIterator[_Once]:
    done: asyncio.Queue[tuple[int, str, str]] = asyncio.Queue()
    async with AsyncExitStack() as stack:
        pools = []
        for name in ("owner", "reader"):
            where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pegaflow-bench-", dir="/dev/shm")))
            _make_pool(where / "pool", size)
            pool = MoverPool(
                where,
                name,
                where / "pool",
                size,
                on_done=lambda *ended: done.put_nowait(ended),
                on_metadata=lambda _: None,
                ucx=ucx,
            )
            stack.push_async_callback(pool.stop)
            pools.append(pool)
        await asyncio.gather(*(pool.start() for pool in pools))
        yield _MoverOnce(pools[0], pools[1], size, done)


# ---- two bare agents


class _BareOnce(_Once):
    def __init__(self, reader: subprocess.Popen[str]) -> None:
        self._reader = reader

    async def __call__(self, page: int, order: Sequence[int]) -> float:
        _say(self._reader.stdin, {"page": page, "order": order})
        return float(_hear(self._reader.stdout)["seconds"])


@asynccontextmanager
async def _bare_pair(size: int, ucx: Mapping[str, str]) -> AsyncIterator[_Once]:
    with (
        tempfile.TemporaryDirectory(prefix="pegaflow-bench-", dir="/dev/shm") as where,
        _side(Path(where) / "owner", size, ucx) as owner,
        _side(Path(where) / "reader", size, ucx) as reader,
    ):
        _say(reader.stdin, _hear(owner.stdout))
        _hear(reader.stdout)
        yield _BareOnce(reader)


@contextmanager
def _side(pool: Path, size: int, ucx: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    _make_pool(pool, size)
    process = subprocess.Popen(
        [sys.executable, __file__, "--side", pool.name, "--pool", str(pool)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(os.environ, ucx),
    )
    try:
        yield process
    finally:
        # Never politely: UCX may crash on its way out.
        process.kill()
        process.communicate()


def _bare_side(role: str, path: Path) -> None:
    """Runs in a process of its own: an agent that owns or reads a pool, told what to do through stdin."""
    import numpy as np
    from pegaflow.services.tier.mover.agent import NixlAgent, State

    size = path.stat().st_size
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED)
    memory.madvise(mmap.MADV_HUGEPAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    agent = NixlAgent(f"{role}-{os.getpid()}")
    metadata = agent.register(base, size)
    if role == "owner":
        _say(sys.stdout, {"base": base, "metadata": metadata.hex()})
        sys.stdin.read()
        return
    peer = _hear(sys.stdin)
    name = agent.connect(bytes.fromhex(peer["metadata"]))
    _say(sys.stdout, {})
    for line in sys.stdin:
        asked = json.loads(line)
        page = asked["page"]
        order = np.array(asked["order"], dtype=np.uint64)
        began = time.perf_counter()
        local = np.zeros((len(order), 3), dtype=np.uint64)
        remote = local.copy()
        local[:, 0] = base + np.arange(len(order), dtype=np.uint64) * page
        remote[:, 0] = peer["base"] + order * page
        local[:, 1] = remote[:, 1] = page
        handle = agent.prepare(name, local, remote, b"bench")
        state = agent.post(handle)
        while state is not State.DONE:
            state = agent.state(handle)
        took = time.perf_counter() - began
        agent.release(handle)
        _say(sys.stdout, {"seconds": took})


def _make_pool(path: Path, size: int) -> None:
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _say(stream: IO[str] | None, message: dict[str, Any]) -> None:
    assert stream is not None
    print(json.dumps(message), file=stream, flush=True)


def _hear(stream: IO[str] | None) -> dict[str, Any]:
    assert stream is not None
    line = stream.readline()
    if not line:
        raise RuntimeError("the other side ended")
    heard: dict[str, Any] = json.loads(line)
    return heard


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=int, action="append", help="bytes; repeatable (default 64 KiB, 1 MiB, 2.8 MiB)")
    parser.add_argument("--total", type=int, default=256 << 20, help="bytes per READ")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tcp", action="store_true", help="also over TCP")
    parser.add_argument("--adjacent", action="store_true", help="also with pages in order")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--side", choices=("owner", "reader"), help=argparse.SUPPRESS)
    parser.add_argument("--pool", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        _bare_side(arguments.side, arguments.pool)
        return 0
    results = []
    print(f"{'transport':10} {'page':>9} {'pages':>6} {'order':10} {'bare GB/s':>10} {'movers GB/s':>12} {'ratio':>6}")
    for ucx in ({}, {"UCX_TLS": "tcp"}) if arguments.tcp else ({},):
        for adjacent in (False, True) if arguments.adjacent else (False,):
            for page in arguments.page or PAGES_BYTES:
                pages = max(arguments.total // page, 1)
                result = compare(page, pages, arguments.repeats, ucx=ucx, adjacent=adjacent)
                results.append(asdict(result))
                print(
                    f"{result.transport:10} {page:9} {pages:6} {result.order:10} {result.bare_gb_s:10.2f}"
                    f" {result.movers_gb_s:12.2f} {result.ratio:6.2f}",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps({"goal_ratio": GOAL, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
