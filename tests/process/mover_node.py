"""Nodes for tests of the mover: each is a MoverPool over a pool of its own, with its mover in a process of its own.

"The owner" is the mover that another one, "the reader", reads from.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import shutil
import signal
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import uvloop
from pegaflow.services.tier.mover.events import Limits
from pegaflow.services.tier.mover.pool import MoverPool

TRANSPORTS = [pytest.param({}, id="cma"), pytest.param({"UCX_TLS": "tcp"}, id="tcp")]
TCP = {"UCX_TLS": "tcp"}
SMALL = 8 << 20
LARGE = 256 << 20
PAGE = 64 << 10
# Nobody is recycled or found hung unless a test wants it: tests stop movers for as long as a busy machine takes.
QUICK = Limits(
    retire_grace_s=0.2, retire_limit_s=2.0, respawn_first_s=0.05, recycle_after_s=60.0, quarantine_share=1.0, hung_after_s=60.0
)
PATIENCE_S = 30.0

Ended = tuple[int, str, str]


class Owner(Protocol):
    """Whom a READ may be asked of."""

    name: str
    size: int

    @property
    def metadata(self) -> bytes: ...

    @property
    def base(self) -> int: ...


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

    @property
    def metadata(self) -> bytes:
        return self.pool.metadata

    @property
    def base(self) -> int:
        return self.pool.base

    def read(self, job: int, owner: Owner, local: list[int], remote: list[int], lengths: list[int]) -> None:
        self.pool.read(
            job,
            f"{owner.name}/1",
            owner.metadata,
            owner.base,
            owner.size,
            array("Q", local),
            array("Q", remote),
            array("I", lengths),
            b"read %d" % job,
        )

    async def outcome_of(self, job: int, peer: str, metadata: bytes, base: int, size: int = SMALL, offset: int = 0) -> str:
        """One page from there to the start of our pool: for peers that are not what they say."""
        here, there = array("Q", [0]), array("Q", [offset])
        self.pool.read(job, peer, metadata, base, size, here, there, array("I", [PAGE]), b"read")
        return await self.outcome(job)

    def read_all(self, job: int, owner: Owner, page: int = PAGE) -> None:
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

    async def posted(self, owner: Owner) -> None:
        """Returns when the READs of `owner` asked so far are posted: a lane keeps the order, so a refused one comes after."""
        self.read(1 << 40, owner, [], [], [])
        assert await self.outcome(1 << 40) == "bad_descriptor"

    async def meets(self, owner: Owner) -> None:
        """Connects to the owner: its first page is read."""
        self.read(1 << 41, owner, [0], [0], [PAGE])
        assert await self.outcome(1 << 41) == "done"
        self.memory[:PAGE] = bytes(PAGE)

    async def served_by(self, owner: Owner) -> None:
        """Reads from the owner until that succeeds: a mover may be on its way, at either end."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self.read(1 << 42, owner, [0], [0], [PAGE])
                if await self.outcome(1 << 42) == "done":
                    return

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
