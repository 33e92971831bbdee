"""Checksums of pages in the pool, off the event loop: a few threads, which share each large job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import xxhash
from pegaflow.common import faults, logs
from pegaflow.common.fault_points import Point
from pegaflow.common.pool import GRANULE

log = logs.get(__name__)

INLINE_BYTES = 256 << 10
"""Up to here the checksum costs less (tens of µs) than handing it to a thread and back."""
PART_BYTES = 4 << 20
"""What one thread takes at least: some hundred µs, well above the cost of one more hand-over."""
MOST = 4

Done = Callable[[list[bytes] | None], None]


def by_cores() -> int:
    """Threads for this machine: half of what this process may use, as engines copy at the same time; at most MOST."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) // 2))


def parts(lengths: Sequence[int], threads: int) -> Iterator[slice]:
    """Runs of pages for `threads` threads, alike in bytes, none below PART_BYTES but the last."""
    wanted = max(PART_BYTES, -(-sum(lengths) // threads))
    first = size = 0
    for i, length in enumerate(lengths):
        size += length
        if size >= wanted:
            yield slice(first, i + 1)
            first, size = i + 1, 0
    if first < len(lengths):
        yield slice(first, len(lengths))


@dataclass(slots=True, eq=False)
class _Job:
    done: Done
    missing: int
    found: dict[int, list[bytes] | None] = field(default_factory=dict)


class Hasher:
    """Reads the pool; the caller guarantees by references that the pages stand still until `done` was called.

    PERF: xxhash lets go of the interpreter's lock, so that threads add up: 11 to 16 GB/s each, where RDMA brings 50.
    """

    def __init__(self, memory: memoryview, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        """`threads`: 0 for as many as suit this machine."""
        self._memory, self._loop = memory, loop
        self._count = threads or by_cores()
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="hasher")

    def hash(self, slots: Sequence[int], lengths: Sequence[int], done: Done) -> None:
        """`done(checksums)`, 16 bytes per page, is called on the loop, never from inside this call; None: it failed.

        Jobs may end in another order than they began.
        """
        if sum(lengths) <= INLINE_BYTES:
            found = self._checksums(slots, lengths)
            faults.reach(Point.TIER_HASH_AFTER_COMPUTED)
            self._loop.call_soon(done, found)
            return
        shares = list(parts(lengths, self._count))
        job = _Job(done, len(shares))
        for number, share in enumerate(shares):
            self._threads.submit(self._work, job, number, slots[share], lengths[share])

    def _work(self, job: _Job, number: int, slots: Sequence[int], lengths: Sequence[int]) -> None:
        found: list[bytes] | None
        try:
            found = self._checksums(slots, lengths)
            faults.reach(Point.TIER_HASH_AFTER_COMPUTED)
        except Exception:
            log.exception("hash_failed", pages=len(slots))
            found = None
        self._loop.call_soon_threadsafe(self._part_done, job, number, found)

    def _part_done(self, job: _Job, number: int, found: list[bytes] | None) -> None:
        job.found[number] = found
        if len(job.found) < job.missing:
            return
        whole: list[bytes] = []
        for i in range(job.missing):
            share = job.found[i]
            if share is None:
                job.done(None)
                return
            whole += share
        job.done(whole)

    def _checksums(self, slots: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        memory = self._memory
        found = []
        for slot, length in zip(slots, lengths, strict=True):
            start = slot * GRANULE
            with memory[start : start + length] as page:
                found.append(xxhash.xxh3_128_digest(page))
        return found

    def close(self) -> None:
        """Returns when no job runs any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
