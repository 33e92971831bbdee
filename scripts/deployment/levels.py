"""What the processes of a deployment use: memory of their own, open files, threads."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from deployment.supervision import SERVICES, Supervision


class Level(NamedTuple):
    """Of one service and its children. `anonymous_kib` leaves out what is shared: the pool, libraries."""

    processes: int
    anonymous_kib: int
    files: int
    threads: int


def take(supervision: Supervision) -> dict[str, Level]:
    """By service; those that do not run are left out. A process that ends meanwhile is not counted."""
    levels = {}
    for name in SERVICES:
        if pid := supervision.process(name).pid:
            found = [level for one in family(pid) if (level := _level(Path("/proc", str(one)))) is not None]
            levels[name] = Level(*map(sum, zip(*found, strict=True))) if found else Level(0, 0, 0, 0)
    return levels


def family(pid: int) -> list[int]:
    """A process and all its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _number(entry, "PPid:")):
            children.setdefault(parent, []).append(int(entry.name))
    found, ahead = [], [pid]
    while ahead:
        found.append(ahead.pop(0))
        ahead += children.get(found[-1], [])
    return found


def _level(process: Path) -> Level | None:
    try:
        files = sum(1 for _ in (process / "fd").iterdir())
    except OSError:
        return None
    return Level(1, _number(process, "RssAnon:"), files, _number(process, "Threads:"))


def _number(process: Path, field: str) -> int:
    """From its status; 0 when it has ended, and for a kernel thread, which has no memory."""
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)
