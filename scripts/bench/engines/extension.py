"""What the benchmark asks of the workers (`--worker-extension-cls`, called through /collective_rpc). Loaded in each worker."""

from __future__ import annotations

import cProfile
import ctypes
import os
import threading
import time
from pathlib import Path

from engines.names import PROFILE_FILE

MADV_POPULATE_WRITE = 23
"""Of Linux 5.14."""
_profile: list[cProfile.Profile] = []


class WorkerProbe:
    """Mixed into vLLM's worker."""

    def bench_threads(self) -> dict[str, str]:
        """Native id → name of each Python thread."""
        return {str(thread.native_id): thread.name for thread in threading.enumerate()}

    def bench_profile(self) -> dict[str, str]:
        """Starts cProfile (CPU time) in the worker's main thread; the second call ends it and writes the file."""
        if not _profile:
            _profile.append(cProfile.Profile(time.thread_time))
            _profile[0].enable()
        else:
            _profile[0].disable()
            _profile[0].dump_stats(os.environ[PROFILE_FILE] + ".worker")
        return {}

    def bench_populate(self, least: str) -> int:
        """Puts its mappings of at least `least` bytes into the page table, so that nobody waits for that later; their bytes."""
        return sum(_populated(start, end) for start, end in _mappings() if end - start >= int(least))


def _mappings() -> list[tuple[int, int]]:
    """From and to, of those that may be written and are not a file's."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        bounds, rights, _, _, inode, *_ = line.split()
        if rights.startswith("rw") and inode == "0":
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            found.append((start, end))
    return found


def _populated(start: int, end: int) -> int:
    """Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_POPULATE_WRITE):
        raise OSError(ctypes.get_errno(), "madvise(MADV_POPULATE_WRITE)")
    return end - start
