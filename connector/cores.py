"""Which cores the connector's threads may run on.

vLLM's CPU build binds a worker's main thread to a compute core (`utils/ompmultiprocessing.py`, through the OpenMP runtime),
and a thread inherits the mask of the one that starts it. Copies and messages would then take turns with the model on that
one core, while the cores that vLLM keeps free for such work stand idle.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

NODES = Path("/sys/devices/system/node")


@contextmanager
def unbound(wanted: bool) -> Iterator[None]:
    """Threads that are started within may run on every core of `reach`; the mask of the caller itself is put back.

    Does nothing unless `wanted`, nor where masks cannot be read or set (another system than Linux).
    """
    bound: set[int] = set()
    try:
        if wanted:
            bound = os.sched_getaffinity(0)
            os.sched_setaffinity(0, reach(bound, os.sched_getaffinity(os.getppid()), nodes()))
    except (AttributeError, OSError):
        bound = set()
    try:
        yield
    finally:
        if bound:
            os.sched_setaffinity(0, bound)


def reach(bound: set[int], allowed: set[int], nodes: Iterable[set[int]]) -> set[int]:
    """The `allowed` cores of those NUMA nodes that `bound` touches, and `bound` itself.

    `allowed`: of the process that started the worker, which is bound to no core by vLLM and has the operator's limits.
    """
    near = {core for node in nodes if node & bound for core in node}
    return bound | (allowed & near if near else allowed)


def nodes() -> list[set[int]]:
    """The cores of each NUMA node; [] where the kernel does not say."""
    return [cores(path.read_text()) for path in sorted(NODES.glob("node*/cpulist"))]


def cores(text: str) -> set[int]:
    """Parses the kernel's `0-3,8`."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found
