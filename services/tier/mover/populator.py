"""Enters the pool's memory into the mover's page table, in the background, as far as the tier has given it any.

Otherwise a READ stops for a page fault at every 4 KiB that this mover has not touched before: at those it writes, and, when
another mover reads here, at those it has never looked at itself. Such a READ runs at half the speed of the next one.
"""

from __future__ import annotations

import queue
import threading
from typing import Final

from pegaflow.common.pool import populate
from pegaflow.services.tier.mover.descriptors import Region

# A call holds the address space's lock as a reader; whoever maps memory meanwhile waits for it.
_STEP_BYTES: Final = 8 << 20


class Populator:
    """A daemon thread; the process ends by SIGKILL only, so it is never joined."""

    def __init__(self, pool: Region) -> None:
        self._pool = pool
        self._backed: queue.SimpleQueue[int] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="mover-populate", daemon=True).start()

    def backed(self, size: int) -> None:
        """The first `size` bytes have memory: they never lose it again. Never blocks."""
        self._backed.put(min(size, self._pool.size))

    def _run(self) -> None:
        done = 0
        while True:
            until = self._backed.get()
            while done < until:
                step = min(_STEP_BYTES, until - done)
                populate(self._pool.base + done, step)
                done += step
