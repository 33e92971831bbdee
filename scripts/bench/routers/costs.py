"""What processes have used, as /proc says it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of all their threads that live, from the scheduler's own account (nanoseconds, no ticks)."""
    used = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                used += int((task / "schedstat").read_text().split()[0])
    return used / 1e9


def resident(pid: int) -> int:
    """Bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"process {pid} is gone")
