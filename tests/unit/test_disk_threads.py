"""The disk's threads: the order of jobs, and those that hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from pegaflow.services.tier import commands
from pegaflow.services.tier.disk.files import DiskFiles
from pegaflow.services.tier.disk.threads import DiskThreads
from real_disk import SEGMENT, Disk


class _Slow(DiskFiles):
    """Reads stand still until they may go on."""

    def __init__(self, folder: Path, memory: memoryview) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        super().__init__(folder, memory)

    def read(self, records: Any, slots: Any) -> Any:
        self.begun.set()
        self.may.wait()
        return super().read(records, slots)


def test_a_read_that_has_not_begun_can_be_given_up_and_reads_go_before_writes(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    disk.files.close()

    async def run() -> None:
        files = disk.files = _Slow(tmp_path / "disk", disk.memory)
        heard: list[tuple[str, int, Any]] = []
        enough = asyncio.Event()

        def hear(kind: str, job: int, found: Any) -> None:
            heard.append((kind, job, found))
            if len(heard) == 5:
                enough.set()

        threads = DiskThreads(files, asyncio.get_running_loop(), 1, lambda *a: hear("written", *a), lambda *a: hear("read", *a))
        one, two = disk.put(0, 0), disk.put(1, 1)
        threads.write(commands.DiskWrite(1, [one, two], [[0], [1]], SEGMENT))
        while not heard:
            await asyncio.sleep(0.001)
        threads.read(commands.DiskRead(2, [one], [[10]]))
        await asyncio.to_thread(files.begun.wait)
        threads.write(commands.DiskWrite(3, [disk.put(2, 2)], [[2]], SEGMENT))
        threads.read(commands.DiskRead(4, [two], [[11]]))
        threads.read(commands.DiskRead(5, [one], [[12]]))
        threads.give_up(2)  # it has begun: its slots are not free before it ends
        threads.give_up(5)
        assert len(heard) == 1, "never from inside a call"
        files.may.set()
        await enough.wait()
        assert heard[0] == ("written", 1, "") and ("read", 5, None) in heard
        rest = [one for one in heard[1:] if one[1] != 5]
        assert rest == [("read", 2, [list(one.checksums)]), ("read", 4, [list(two.checksums)]), ("written", 3, "")]
        threads.write(commands.DiskWrite(6, [disk.put(3, 3, segment=2)], [[3]], SEGMENT))
        assert await threads.stop(30) == []

    asyncio.run(run())
    disk.memory.release()
    disk.mapping.close()


def test_a_thread_that_hangs_in_a_system_call_is_shown_and_left_behind(tmp_path: Path) -> None:
    """The log is a pipe that nobody reads: appending to it does not come back until somebody does."""
    disk = Disk(tmp_path / "disk")
    end, pipe = os.pipe()
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    os.set_blocking(pipe, True)

    async def run() -> None:
        heard: asyncio.Queue[tuple[str, int, Any]] = asyncio.Queue()
        threads = DiskThreads(
            disk.files,
            asyncio.get_running_loop(),
            2,
            lambda *a: heard.put_nowait(("written", *a)),
            lambda *a: heard.put_nowait(("read", *a)),
        )
        one, two = disk.put(0, 0), disk.put(1, 1)
        threads.write(commands.DiskWrite(1, [one], [[0]], SEGMENT))
        assert await heard.get() == ("written", 1, "")
        os.dup2(pipe, disk.files._logs[1])
        threads.write(commands.DiskWrite(2, [two], [[1]], SEGMENT))
        while not threads.busy():
            await asyncio.sleep(0.001)
        threads.read(commands.DiskRead(3, [one], [[10]]))
        assert await heard.get() == ("read", 3, [list(one.checksums)]), "the other thread goes on"
        (left,) = await threads.stop(0.05)
        assert left["doing"] == "write" and left["seconds"] > 0 and heard.empty()
        assert disk.files._dir >= 0, "nothing is closed under a job"
        while heard.empty():
            await asyncio.to_thread(os.read, end, 1 << 16)
        assert await heard.get() == ("written", 2, "") and await threads.stop(30) == []
        assert disk.files._dir == -1

    try:
        asyncio.run(run())
    finally:
        os.close(end)
        os.close(pipe)
        disk.memory.release()
        disk.mapping.close()
