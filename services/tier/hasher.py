"""Checksums of pages in the pool, off the event loop: one thread, jobs in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash
from pegaflow.common import faults, logs
from pegaflow.common.fault_points import Point
from pegaflow.common.pool import GRANULE

log = logs.get(__name__)

INLINE_BYTES = 256 << 10
"""Up to here the checksum costs less (tens of µs) than handing it to a thread and back."""


class Hasher:
    """Reads the pool; the caller guarantees by references that the pages stand still until `done` was called."""

    def __init__(self, memory: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        self._memory, self._loop = memory, loop
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="hasher")

    def hash(self, slots: Sequence[int], lengths: Sequence[int], done: Callable[[list[bytes] | None], None]) -> None:
        """`done(checksums)`, 16 bytes per page, is called on the loop, never from inside this call; None: it failed."""
        if sum(lengths) <= INLINE_BYTES:
            self._loop.call_soon(done, self._checksums(slots, lengths))
        else:
            self._threads.submit(self._work, slots, lengths, done)

    def _work(self, slots: Sequence[int], lengths: Sequence[int], done: Callable[[list[bytes] | None], None]) -> None:
        found = None
        try:
            found = self._checksums(slots, lengths)
        except Exception:
            log.exception("hash_failed", pages=len(slots))
        self._loop.call_soon_threadsafe(done, found)

    def _checksums(self, slots: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        memory = self._memory
        found = []
        for slot, length in zip(slots, lengths, strict=True):
            start = slot * GRANULE
            with memory[start : start + length] as page:
                found.append(xxhash.xxh3_128_digest(page))
        faults.reach(Point.TIER_HASH_AFTER_COMPUTED)
        return found

    def close(self) -> None:
        """Returns when no job runs any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
