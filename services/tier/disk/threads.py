"""The disk's threads: jobs in order, reads before writes, each answered once on the event loop.

A file system that does not answer (a dead server, a failing drive) keeps a thread in a system call for as long as it likes.
Nobody waits for such a thread: the level above has deadlines (level.py), `busy` shows it, and `stop` leaves it behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread, get_ident
from typing import Any, TypeVar

from pegaflow.common import clock, logs
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.services.tier.commands import DiskRead, DiskWrite
from pegaflow.services.tier.disk.files import DiskFiles, code_of

T = TypeVar("T")

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class _Drop:
    segment: int


@dataclass(frozen=True, slots=True)
class _Load:
    segment: int
    answer: asyncio.Future[Any]


_Job = DiskRead | DiskWrite | _Drop | _Load
_DOING: dict[type[Any], str] = {DiskRead: "read", DiskWrite: "write", _Drop: "drop", _Load: "load"}


class DiskThreads:
    """Carries jobs out. The caller bounds what is under way and keeps the slots of a job until it is answered.

    `written(job, code)` and `read(job, found)` are called on the loop, never from inside a call of this class. Owns `files`.
    """

    def __init__(
        self,
        files: DiskFiles,
        loop: asyncio.AbstractEventLoop,
        count: int,
        written: Callable[[int, str], None],
        read: Callable[[int, Any], None],
    ) -> None:
        self.files, self._loop, self._written, self._read_ended = files, loop, written, read
        self._reads: deque[_Job] = deque()
        self._others: deque[_Job] = deque()
        self._changed = Condition()
        self._closing = False
        self._ended = asyncio.Event()
        self._alive = count
        self._busy: dict[int, tuple[str, float]] = {}
        self._threads = [Thread(target=self._work, name=f"disk-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    # --- asked -------------------------------------------------------------------------------------------------------

    def write(self, command: DiskWrite) -> None:
        self._put(self._others, command)

    def read(self, command: DiskRead) -> None:
        self._put(self._reads, command)

    def drop(self, segment: int) -> None:
        """After the jobs that stand before it, which the caller has seen end."""
        self._put(self._others, _Drop(segment))

    async def load(self, segment: int) -> tuple[int, Sequence[Any], int] | None:
        """See `DiskFiles.load`. Raises what it raises."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._put(self._others, _Load(segment, answer))
        found: tuple[int, Sequence[Any], int] | None = await answer
        return found

    def _put(self, queue: deque[_Job], job: _Job) -> None:
        with self._changed:
            queue.append(job)
            self._changed.notify()

    def give_up(self, job: int) -> None:
        """A read that has not begun is answered at once; one that has, when it ends."""
        with self._changed:
            waiting = next((one for one in self._reads if isinstance(one, DiskRead) and one.job == job), None)
            if waiting is not None:
                self._reads.remove(waiting)
        if waiting is not None:
            self._loop.call_soon(self._read_ended, job, None)

    # --- done --------------------------------------------------------------------------------------------------------

    def _next(self) -> _Job | None:
        with self._changed:
            self._busy.pop(get_ident(), None)
            while not self._closing and not self._reads and not self._others:
                self._changed.wait()
            if self._closing:
                return None
            job = self._reads.popleft() if self._reads else self._others.popleft()
            self._busy[get_ident()] = (_DOING[type(job)], clock.now())
            return job

    def _work(self) -> None:
        while (job := self._next()) is not None:
            match job:
                case DiskRead():
                    self._tell(self._read_ended, job.job, self._read(job))
                case DiskWrite():
                    self._tell(self._written, job.job, self._write(job))
                case _Drop(segment):
                    self._drop(segment)
                case _Load(segment, answer):
                    self._load(segment, answer)
        with self._changed:
            self._alive -= 1
            last = not self._alive
        if last:  # nothing uses the files any more
            try:
                self.files.close()
            except OSError as error:
                log.warning("disk_not_closed", text=error.strerror)
            self._tell(self._ended.set)

    def _tell(self, call: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: this thread was left behind, and nobody listens
            self._loop.call_soon_threadsafe(call, *arguments)

    def _read(self, job: DiskRead) -> Any:
        try:
            return self.files.read(job.records, job.slots)
        except Exception:
            log.exception("disk_read_failed", pages=len(job.records))
            return None

    def _write(self, job: DiskWrite) -> str:
        try:
            self.files.write(job.records, job.slots, job.segment_bytes)
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
                self.files.drop(segment)
                return
            except Exception:
                log.exception("disk_drop_failed", segment=segment)

    def _load(self, segment: int, answer: asyncio.Future[Any]) -> None:
        """Twice if need be, as `_drop`."""
        failed: Exception | None = None
        for _ in range(2):
            try:
                self._tell(_resolve, answer, self.files.load(segment), None)
                return
            except Exception as error:
                failed = error
        self._tell(_resolve, answer, None, failed)

    # --- looking, and the end ----------------------------------------------------------------------------------------

    def busy(self) -> list[dict[str, Any]]:
        """What each thread that works does (read, write, drop, load), and for how many seconds."""
        now = clock.now()
        with self._changed:
            return [{"doing": doing, "seconds": round(now - since, 3)} for doing, since in self._busy.values()]

    async def stop(self, timeout_s: float) -> list[dict[str, Any]]:
        """Ends the threads; jobs that have not begun are forgotten. Returns what still runs after `timeout_s`, as `busy`.

        Such a job may still touch the pool and the files: both must stay until the process ends, which it does not hinder.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout_s)
            return []
        return self.busy()


def _resolve(answer: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if answer.done():  # cancelled
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(found)


async def apart(call: Callable[[], T]) -> T:
    """The result of a call that may hang, from a thread of its own, which keeps nobody waiting if this is cancelled."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        found, failed = None, None
        try:
            found = call()
        except Exception as error:
            failed = error
        with suppress(RuntimeError):  # as in `DiskThreads._tell`
            loop.call_soon_threadsafe(_resolve, answer, found, failed)

    Thread(target=work, name="disk-open", daemon=True).start()
    return await answer
