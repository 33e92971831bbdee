"""The disk's threads: jobs in order, reads before writes, each answered once on the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any

from pegaflow.common import logs
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.services.tier.commands import DiskRead, DiskWrite
from pegaflow.services.tier.disk.files import DiskFiles, code_of

log = logs.get(__name__)


class DiskThreads:
    """Carries jobs out. The caller bounds what is under way and keeps the slots of a job until it is answered.

    `written(job, code)` and `read(job, found)` are called on the loop, never from inside a call of this class.
    """

    def __init__(
        self,
        files: DiskFiles,
        loop: asyncio.AbstractEventLoop,
        count: int,
        written: Callable[[int, str], None],
        read: Callable[[int, Any], None],
    ) -> None:
        self._files, self._loop, self._written, self._read_ended = files, loop, written, read
        self._reads: deque[DiskRead] = deque()
        self._others: deque[DiskWrite | int] = deque()
        self._changed = Condition()
        self._closing = False
        self._threads = [Thread(target=self._work, name=f"disk-{i}") for i in range(count)]
        for thread in self._threads:
            thread.start()

    def write(self, command: DiskWrite) -> None:
        self._put(self._others, command)

    def read(self, command: DiskRead) -> None:
        self._put(self._reads, command)

    def drop(self, segment: int) -> None:
        """After the jobs that stand before it, which the caller has seen end."""
        self._put(self._others, segment)

    def _put(self, queue: deque[Any], job: DiskRead | DiskWrite | int) -> None:
        with self._changed:
            queue.append(job)
            self._changed.notify()

    def give_up(self, job: int) -> None:
        """A read that has not begun is answered at once; one that has, when it ends."""
        with self._changed:
            waiting = next((one for one in self._reads if one.job == job), None)
            if waiting is not None:
                self._reads.remove(waiting)
        if waiting is not None:
            self._loop.call_soon(self._read_ended, job, None)

    def _next(self) -> DiskRead | DiskWrite | int | None:
        with self._changed:
            while not self._closing and not self._reads and not self._others:
                self._changed.wait()
            if self._closing:
                return None
            return self._reads.popleft() if self._reads else self._others.popleft()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if isinstance(job, int):
                self._drop(job)
            elif isinstance(job, DiskRead):
                self._answer(self._read_ended, job.job, self._read(job))
            else:
                self._answer(self._written, job.job, self._write(job))

    def _answer(self, call: Callable[[int, Any], None], job: int, found: Any) -> None:
        self._loop.call_soon_threadsafe(call, job, found)

    def _read(self, job: DiskRead) -> Any:
        try:
            return self._files.read(job.records, job.slots)
        except Exception:
            log.exception("disk_read_failed", pages=len(job.records))
            return None

    def _write(self, job: DiskWrite) -> str:
        try:
            self._files.write(job.records, job.slots, job.segment_bytes)
        except OSError as error:
            return code_of(error)
        except Exception:
            log.exception("disk_write_failed", pages=len(job.records))
            return ErrorCode.INTERNAL
        return ""

    def _drop(self, segment: int) -> None:
        """Twice if need be: files that stay behind take room that nobody counts, until the next life finds them."""
        for _ in range(2):
            try:
                self._files.drop(segment)
                return
            except Exception:
                log.exception("disk_drop_failed", segment=segment)

    def close(self) -> None:
        """Returns when no job runs any more; those that have not begun are forgotten."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._files.close()
