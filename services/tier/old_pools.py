"""Pools that have lost their names and are still mapped: their memory is not free before the last process lets go of it.

A life that refuses the pool it finds (another size, another layout) takes its name away. Engines that live notice the end of
their session and unmap it, unless they are stopped, or wait for a device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_GONE = " (deleted)"


class OldPool(NamedTuple):
    """`size`: bytes of memory, or those of the mapping where the kernel does not tell; `holders`: pid and command."""

    name: str
    size: int
    holders: tuple[tuple[int, str], ...]


def still_mapped(directory: Path) -> list[OldPool]:
    """Pools of this directory without a name that some process maps, as far as /proc shows them. Blocking (a few ms)."""
    start = f"{directory.resolve()}/pool-"
    sizes: dict[str, int] = {}
    holders: dict[str, dict[int, str]] = {}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            for name, size in _mapped(process, start):
                sizes[name] = max(size, sizes.get(name, 0))
                holders.setdefault(name, {})[int(process.name)] = _command(process)
    return [OldPool(name, sizes[name], tuple(sorted(found.items()))) for name, found in sorted(holders.items())]


def _mapped(process: Path, start: str) -> Iterator[tuple[str, int]]:
    with suppress(OSError):  # it has ended, or is somebody else's
        for line in (process / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
            if start in line and line.endswith(_GONE):
                place, path = line.partition(" ")[0], line[line.index(start) : -len(_GONE)]
                first, _, end = place.partition("-")
                size = int(end, 16) - int(first, 16)
                with suppress(OSError):  # only for those who may trace any process
                    size = os.stat(process / "map_files" / place).st_blocks * 512
                yield Path(path).name, size


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"


def explained(pools: list[OldPool]) -> str:
    """What keeps the memory, and what to do: the end of an error's text; empty if nothing does."""
    if not pools:
        return ""
    parts = [
        f"{pool.size >> 20} MiB are {pool.name}, which an earlier life has left and which is still mapped by "
        + ", ".join(f"{command} (pid {pid})" for pid, command in pool.holders)
        for pool in pools
    ]
    advice = "these processes let go of it when they have noticed that their tier is gone; end those that do not"
    return f". {'; '.join(parts)}: {advice}"
