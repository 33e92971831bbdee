"""Process trees as /proc shows them: their CPU time, and holding them still while another one is measured."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Thread(NamedTuple):
    pid: int
    tid: int
    name: str


def tree(root: int) -> list[int]:
    """`root` and all its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The command may contain spaces and brackets; what follows its last bracket does not.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def command(pid: int) -> str:
    """As the kernel calls it; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def cpu(roots: Iterable[int]) -> dict[Thread, float]:
    """Seconds each thread of these trees has run so far, from the scheduler's own account (nanoseconds, no ticks)."""
    used: dict[Thread, float] = {}
    for root in roots:
        for pid in tree(root):
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with suppress(OSError):
                        name = (task / "comm").read_text().strip()
                        used[Thread(pid, int(task.name), name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return used


def since(before: dict[Thread, float], after: dict[Thread, float]) -> dict[Thread, float]:
    """Growth; a thread that has ended in between is not in it."""
    return {thread: seconds - before.get(thread, 0.0) for thread, seconds in after.items()}


def hold(roots: Iterable[int]) -> None:
    """Stops whole trees, children last: nobody of them uses a cycle until `let_go`."""
    for root in roots:
        _signal(tree(root), signal.SIGSTOP)


def let_go(roots: Iterable[int]) -> None:
    for root in roots:
        _signal(reversed(tree(root)), signal.SIGCONT)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
