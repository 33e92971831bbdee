"""Checksums of pages in the pool, off the event loop: one thread, jobs in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash
from pegaflow.common.pool import GRANULE


class Hasher:
    """Reads the pool; the caller guarantees by references that the pages stand still until `done` was called."""

    def __init__(self, memory: memoryview, loop: asyncio.AbstractEventLoop) -> None:
        self._memory, self._loop = memory, loop
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="hasher")

    def hash(self, slots: Sequence[int], lengths: Sequence[int], done: Callable[[list[bytes]], None]) -> None:
        """`done(checksums)`, 16 bytes per page, is called on the loop."""
        self._threads.submit(self._work, slots, lengths, done)

    def _work(self, slots: Sequence[int], lengths: Sequence[int], done: Callable[[list[bytes]], None]) -> None:
        memory = self._memory
        found = []
        for slot, length in zip(slots, lengths, strict=True):
            start = slot * GRANULE
            with memory[start : start + length] as page:
                found.append(xxhash.xxh3_128_digest(page))
        self._loop.call_soon_threadsafe(done, found)

    def close(self) -> None:
        """Returns when no job runs any more."""
        self._threads.shutdown(wait=True, cancel_futures=True)
