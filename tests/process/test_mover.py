"""Real movers over real pools: bytes between processes, and what is told when one of them stops or dies.

Each node is a MoverPool with its mover in a process of its own; "the owner" is the mover that another one reads from.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from pegaflow.services.tier.mover.events import Limits
from pegaflow.services.tier.mover.pool import MoverFailed, MoverPool
from pegaflow.services.tier.mover.wire import Metadata

TRANSPORTS = [pytest.param({}, id="cma"), pytest.param({"UCX_TLS": "tcp"}, id="tcp")]
TCP = {"UCX_TLS": "tcp"}
SMALL = 8 << 20
LARGE = 256 << 20
PAGE = 64 << 10
QUICK = Limits(retire_grace_s=0.2, retire_limit_s=2.0, respawn_first_s=0.05)
PATIENCE_S = 30.0

Ended = tuple[int, str, str]


class Node:
    """A pool file on /dev/shm, its movers, and what they told."""

    def __init__(self, name: str, directory: Path, size: int, ucx: dict[str, str], limits: Limits) -> None:
        self.name = name
        self.size = size
        self.directory = directory
        path = directory / "pool"
        with open(path, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), size)
        self.done: asyncio.Queue[Ended] = asyncio.Queue()
        self.announced: list[bytes] = []
        self.pool = MoverPool(
            directory,
            name,
            path,
            size,
            on_done=lambda *ended: self.done.put_nowait(ended),
            on_metadata=self.announced.append,
            ucx=ucx,
            limits=limits,
        )

    def fill(self, seed: int) -> None:
        """Random bytes; large pools repeat one MiB with its number in front, so that no two pages are equal."""
        block = random.Random(seed).randbytes(1 << 20)
        for at in range(0, self.size, 1 << 20):
            self.memory[at : at + (1 << 20)] = block
        for at in range(0, self.size, PAGE):
            self.memory[at : at + 8] = (at + 1).to_bytes(8, "little")

    def read(self, job: int, owner: Node, local: list[int], remote: list[int], lengths: list[int]) -> None:
        self.pool.read(
            job,
            f"{owner.name}/1",
            owner.pool.metadata,
            owner.pool.base,
            owner.size,
            array("Q", local),
            array("Q", remote),
            array("I", lengths),
            b"read %d" % job,
        )

    def read_all(self, job: int, owner: Node, page: int = PAGE) -> None:
        """The whole pool of `owner`, its pages in reverse order, so that none can be joined with its neighbour."""
        offsets = list(range(0, self.size, page))
        self.read(job, owner, offsets, offsets[::-1], [page] * len(offsets))

    def holds_all_of(self, owner: Node, page: int = PAGE) -> bool:
        last = self.size - page
        return all(self.memory[at : at + page] == owner.memory[last - at : last - at + page] for at in range(0, self.size, page))

    async def ended(self) -> Ended:
        async with asyncio.timeout(PATIENCE_S):
            return await self.done.get()

    async def outcome(self, job: int) -> str:
        number, outcome, text = await self.ended()
        assert number == job, text
        return outcome

    async def posted(self, owner: Node) -> None:
        """Returns when the READs of `owner` asked so far are posted: a lane keeps the order, so a refused one comes after."""
        self.read(1 << 40, owner, [], [], [])
        assert await self.outcome(1 << 40) == "bad_descriptor"

    @property
    def pid(self) -> int:
        return self.pool.pids()[0]


@asynccontextmanager
async def started(*names: str, size: int = SMALL, ucx: dict[str, str], limits: Limits = QUICK) -> AsyncIterator[list[Node]]:
    """Ready nodes; all their processes are reaped and their files gone afterwards."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name in names:
            directory = Path(tempfile.mkdtemp(prefix="pegaflow-test-mover-", dir="/dev/shm"))
            stack.callback(shutil.rmtree, directory)
            node = Node(name, directory, size, ucx, limits)
            stack.push_async_callback(node.pool.stop)
            nodes.append(node)
        await asyncio.gather(*(node.pool.start() for node in nodes))
        yield nodes


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


def run(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes an async test a plain one; pytest keeps seeing its parameters."""

    def plain(**arguments: Any) -> None:
        # The tier's loop; the tests of orphans run on asyncio's own.
        uvloop.run(test(**arguments))

    plain.__name__, plain.__doc__ = test.__name__, test.__doc__
    parameters = list(test.__annotations__)
    if "ucx" in parameters:

        def with_ucx(ucx: dict[str, str]) -> None:
            plain(ucx=ucx)

        with_ucx.__name__, with_ucx.__doc__ = test.__name__, test.__doc__
        return with_ucx
    return plain


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_exactly_the_asked_bytes_arrive(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        expected = bytearray(SMALL)
        # Two that touch on both sides, two that touch on one, odd lengths, an odd place, out of order.
        pages = [
            (1 << 20, 2 << 20, PAGE),
            ((1 << 20) + PAGE, (2 << 20) + PAGE, PAGE),
            (3 << 20, 5 << 20, 12_345),
            ((3 << 20) + 12_345, 0, 1),
            (SMALL - 77, SMALL - 77, 77),
            (0, 7 << 20, 1 << 20),
        ]
        for local, remote, length in pages:
            expected[local : local + length] = owner.memory[remote : remote + length]
        reader.read(1, owner, *(list(column) for column in zip(*pages, strict=True)))
        assert await reader.ended() == (1, "done", "")
        assert reader.memory[:] == expected
        counts = reader.pool.counts()
        assert (counts["open"], counts["given_up"], counts["ended_done"]) == (0, 0, 1)


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_many_reads_at_once_each_end_once(ucx: dict[str, str]) -> None:
    async with started("a", "b", "c", ucx=ucx) as (one, two, reader):
        one.fill(1)
        two.fill(2)
        expected = bytearray(SMALL)
        count = SMALL // PAGE
        for job in range(count):
            owner = (one, two)[job % 2]
            there = SMALL - PAGE - job * PAGE
            reader.read(job, owner, [job * PAGE], [there], [PAGE])
            expected[job * PAGE : (job + 1) * PAGE] = owner.memory[there : there + PAGE]
        ended = [await reader.ended() for _ in range(count)]
        assert sorted(ended) == [(job, "done", "") for job in range(count)]
        assert reader.memory[:] == expected
        # The owners' movers take the notifications, so they do not pile up.
        assert await one.pool.ping() + await two.pool.ping() >= count - 2


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_bad_descriptors_are_refused_before_anything_moves(ucx: dict[str, str]) -> None:
    top = (1 << 64) - 1
    bad = {
        "local end": ([SMALL - 1], [0], [2]),
        "remote end": ([0], [SMALL - 1], [2]),
        "local wraps": ([top], [0], [PAGE]),
        "remote wraps": ([0], [top], [PAGE]),
        "one of many": ([0, PAGE, 2 * PAGE], [0, SMALL, 0], [PAGE] * 3),
        "longer than a pool": ([0], [0], [(1 << 32) - 1]),
        "overlap": ([0, PAGE - 1], [0, PAGE], [PAGE, PAGE]),
        "no bytes": ([0], [0], [0]),
        "no pages": ([], [], []),
        "columns": ([0, PAGE], [0], [PAGE]),
    }
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        for job, columns in enumerate(bad.values()):
            reader.read(job, owner, *columns)
            assert await reader.outcome(job) == "bad_descriptor"
        offsets = array("Q", [0])
        reader.pool.read(90, "a/1", owner.pool.metadata, owner.pool.base + 4096, SMALL, offsets, offsets, array("I", [1]), b"")
        assert await reader.outcome(90) == "bad_descriptor"
        assert reader.memory[:] == bytes(SMALL)
        reader.read_all(99, owner)
        assert await reader.outcome(99) == "done"
        assert reader.holds_all_of(owner)


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_garbage_metadata_harms_nothing(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        reader.read_all(1, owner)
        assert await reader.outcome(1) == "done"
        good = owner.pool.metadata
        known = Metadata.unpack(good)
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 1
        wrapped = [b"", b"x", known.blob[: len(known.blob) // 2], random.Random(1).randbytes(400)]
        garbage = [
            *(b"", b"garbage", random.Random(2).randbytes(500), good[:-1], good + b"x", bytes(flipped)),
            *(Metadata("stranger", owner.pool.base, SMALL, blob).pack() for blob in wrapped),
        ]
        offsets = array("Q", [0])
        for job, metadata in enumerate(garbage, 10):
            # Under a name of its own and under the name of a peer that works.
            for peer in ("stranger/1", "a/1"):
                reader.pool.read(job, peer, metadata, owner.pool.base, SMALL, offsets, offsets, array("I", [PAGE]), b"n")
                assert await reader.outcome(job) == "peer_unreachable"
        reader.memory[:] = bytes(SMALL)
        reader.read_all(99, owner)
        assert await reader.outcome(99) == "done"
        assert reader.holds_all_of(owner)
        assert reader.pool.counts()["spawned"] == 1


@pytest.mark.parametrize("ucx", TRANSPORTS)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "unconnected"])
def test_owner_killed_before_a_read(ucx: dict[str, str], connected: bool) -> None:
    async def script() -> None:
        async with started("a", "b", ucx=ucx) as (owner, reader):
            owner.fill(1)
            if connected:
                reader.read_all(1, owner)
                assert await reader.outcome(1) == "done"
                reader.memory[:] = bytes(SMALL)
            old = owner.pool.metadata
            os.kill(owner.pid, signal.SIGKILL)
            reader.read_all(2, owner)
            assert await reader.outcome(2) in ("peer_lost", "peer_unreachable")
            # The owner's next mover has other metadata; with it the same peer is read again.
            await until(lambda: owner.pool.ready and owner.pool.metadata != old)
            reader.read_all(3, owner)
            assert await reader.outcome(3) == "done"
            assert reader.holds_all_of(owner)

    uvloop.run(script())


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_owner_killed_during_a_read(ucx: dict[str, str]) -> None:
    async with started("a", "b", size=LARGE, ucx=ucx) as (owner, reader):
        owner.fill(1)
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        job, outcome = 1, "done"
        # On a machine that is busy the READ may end before the kill: then the owner's next mover is tried.
        while outcome == "done":
            job += 1
            assert job < 10, "no kill came in time"
            await until(lambda: owner.pool.ready)
            pid = owner.pid
            reader.memory[PAGE : PAGE + 8] = bytes(8)
            reader.read_all(job, owner)
            await until(lambda: reader.memory[PAGE : PAGE + 8] != bytes(8))
            os.kill(pid, signal.SIGKILL)
            outcome = await reader.outcome(job)
            await until(partial(dead, pid))
        assert outcome == "peer_lost"
        # Told means quiet: what is there now stays as it is.
        seen = reader.memory[:]
        await asyncio.sleep(0.3)
        assert reader.memory[:] == seen


@run
async def test_stopped_owner_is_killed_with_the_read_pending() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        owner.fill(1)
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        pid = owner.pid
        await stop_process(pid)
        reader.read_all(2, owner)
        await asyncio.sleep(0.2)
        assert reader.done.empty()
        os.kill(pid, signal.SIGKILL)
        assert await reader.outcome(2) == "peer_lost"


@run
async def test_given_up_read_lands_late_and_is_held_until_then() -> None:
    async with started("a", "b", "c", ucx=TCP) as (owner, reader, other):
        owner.fill(1)
        other.fill(3)
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        await stop_process(owner.pid)
        try:
            # All but the first page, which READ 4 gets.
            offsets = list(range(PAGE, SMALL, PAGE))
            reader.read(2, owner, offsets, offsets, [PAGE] * len(offsets))
            await reader.posted(owner)
            reader.pool.give_up(2)
            reader.read(3, owner, [0], [0], [PAGE])
            assert await reader.outcome(3) == "busy_peer"
            # The mover serves others meanwhile, and answers.
            reader.read(4, other, [0], [0], [PAGE])
            assert await reader.outcome(4) == "done"
            assert reader.memory[:PAGE] == other.memory[:PAGE]
            assert reader.memory[PAGE:] == bytes(SMALL - PAGE)
            await reader.pool.ping()
            await asyncio.sleep(0.5)
            assert reader.done.empty(), "told while the owner could still write"
            assert reader.pool.counts()["given_up"] == 1
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        assert await reader.outcome(2) == "landed_late"
        assert reader.memory[PAGE:] == owner.memory[PAGE:]
        assert reader.memory[:PAGE] == other.memory[:PAGE]
        assert reader.pool.counts()["given_up"] == 0
        reader.read(5, owner, [0], [0], [PAGE])
        assert await reader.outcome(5) == "done"


@run
async def test_recycle_reaps_what_was_given_up_and_then_nothing_lands() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        owner.fill(1)
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        stopped, retired = owner.pid, reader.pid
        await stop_process(stopped)
        try:
            reader.memory[:] = bytes(SMALL)
            reader.read_all(2, owner)
            await reader.posted(owner)
            reader.pool.give_up(2)
            reader.pool.recycle()
            assert await reader.outcome(2) == "reaped"
            assert not alive(retired)
            assert len(reader.announced) == 2
            assert reader.announced[0] != reader.announced[1] == reader.pool.metadata
        finally:
            os.kill(stopped, signal.SIGCONT)
        # UCX may abort an owner that resumes with READs of a dead reader queued; its pool then starts another one.
        await asyncio.sleep(0.3)
        assert reader.memory[:] == bytes(SMALL)


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_a_recycle_under_load_loses_no_read(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        owner.pool.recycle()
        reader.pool.recycle()
        job = 0
        while len(reader.announced) < 2 or len(owner.announced) < 2 or reader.pool.counts()["movers"] > 1:
            job += 1
            reader.read(job, owner, [0], [PAGE], [PAGE])
            assert await reader.outcome(job) == "done"
        assert reader.memory[:PAGE] == owner.memory[PAGE : 2 * PAGE]


@run
async def test_killed_mover_ends_its_jobs_and_is_replaced() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        owner.fill(1)
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        await stop_process(owner.pid)
        try:
            reader.read_all(2, owner)
            reader.read_all(3, owner)
            await reader.posted(owner)
            reader.pool.give_up(3)
            killed = reader.pid
            os.kill(killed, signal.SIGKILL)
            assert sorted([await reader.ended(), await reader.ended()]) == [
                (2, "mover_died", "the mover died with the READ open"),
                (3, "reaped", "the mover that had posted it is gone"),
            ]
            assert not alive(killed)
            assert not reader.pool.ready
            reader.read_all(4, owner)
            assert await reader.outcome(4) == "mover_died"
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        await until(lambda: reader.pool.ready and owner.pool.ready)
        job = 4
        outcome = ""
        async with asyncio.timeout(PATIENCE_S):
            # The resumed owner may abort and be replaced itself (see above).
            while outcome != "done":
                job += 1
                reader.read_all(job, owner)
                outcome = await reader.outcome(job)
        assert reader.holds_all_of(owner)


@run
async def test_a_stopped_owner_costs_no_core() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        await stop_process(owner.pid)
        for job in range(2, 8):
            reader.read_all(job, owner)
        await reader.posted(owner)
        before = cpu_s(reader.pid)
        await asyncio.sleep(1.0)
        assert cpu_s(reader.pid) - before < 0.4
        os.kill(owner.pid, signal.SIGCONT)
        assert {(await reader.ended())[1] for _ in range(2, 8)} == {"done"}


@run
async def test_stop_leaves_no_process_and_no_lock() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        await stop_process(owner.pid)
        reader.read_all(1, owner)
        pids = [owner.pid, reader.pid]
        locks = [*(owner.directory / "mover").iterdir(), *(reader.directory / "mover").iterdir()]
        assert len(locks) == 2
        await asyncio.gather(owner.pool.stop(), reader.pool.stop())
        assert await reader.outcome(1) == "mover_died"
        assert [alive(pid) for pid in pids] == [False, False]
        assert not any(lock.exists() for lock in locks)


@run
async def test_an_unusable_pool_is_a_typed_failure() -> None:
    directory = Path(tempfile.mkdtemp(prefix="pegaflow-test-mover-", dir="/dev/shm"))
    try:
        (directory / "pool").write_bytes(bytes(4096))
        pool = MoverPool(*(directory, "a", directory / "pool", 8192), on_done=print, on_metadata=print, ucx={"UCX_TLS": "tcp"})
        with pytest.raises(MoverFailed, match="pool_unusable"):
            await pool.start()
        assert pool.counts()["movers"] == 0
        assert list((directory / "mover").iterdir()) == []
    finally:
        shutil.rmtree(directory)


_ORPHANER = """
import asyncio, sys
from pathlib import Path
from pegaflow.services.tier.mover.pool import MoverPool

async def main():
    where = Path(sys.argv[1])
    pool = MoverPool(where, "a", where / "pool", 1 << 20, on_done=print, on_metadata=print, ucx={"UCX_TLS": "tcp"})
    await pool.start()
    print("pid", pool.pids()[0], flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_mover_dies_with_its_parent(stopped: bool) -> None:
    directory = Path(tempfile.mkdtemp(prefix="pegaflow-test-mover-", dir="/dev/shm"))
    try:
        (directory / "pool").write_bytes(bytes(1 << 20))
        with subprocess.Popen([sys.executable, "-c", _ORPHANER, str(directory)], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid = next(int(line.split()[1]) for line in parent.stdout if line.startswith("pid "))
            pidfd = os.pidfd_open(pid)
            if stopped:
                # Not even able to see that its socket closed.
                os.kill(pid, signal.SIGSTOP)
            parent.kill()
        try:
            assert select.select([pidfd], [], [], PATIENCE_S)[0], "the mover outlived its parent"
        finally:
            os.close(pidfd)
        # Its lock is free, so the next tier may hand the pool out.
        asyncio.run(_start_and_stop(directory))
    finally:
        shutil.rmtree(directory)


async def _start_and_stop(directory: Path) -> None:
    pool = MoverPool(*(directory, "a", directory / "pool", 1 << 20), on_done=print, on_metadata=print, ucx={"UCX_TLS": "tcp"})
    await pool.start()
    assert len(list((directory / "mover").iterdir())) == 1
    await pool.stop()


async def stop_process(pid: int) -> None:
    """SIGSTOP, and back when every thread stands still: on a busy machine that takes a while."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: {stat_fields(task)[0] for task in Path(f"/proc/{pid}/task").iterdir()} == {"T"})


def stat_fields(directory: Path) -> list[str]:
    """/proc/…/stat after the command's name; the first one is the state."""
    return (directory / "stat").read_text().rsplit(")", 1)[1].split()


def cpu_s(pid: int) -> float:
    fields = stat_fields(Path(f"/proc/{pid}"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def dead(pid: int) -> bool:
    return not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
