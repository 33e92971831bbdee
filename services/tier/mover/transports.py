"""Which network the movers really use, as the kernel shows it: their open RDMA devices and their TCP connections."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

_ESTABLISHED = "01"
_SETTINGS = ("UCX_", "NIXL_")


def in_use(pid: int) -> dict[str, Any]:
    """Of one process: `rdma` devices it has open, `tcp` connections by local address, and its UCX settings. {} if it has gone."""
    folder = Path("/proc") / str(pid)
    try:
        links = _links(folder / "fd")
        environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        tcp = [*_connections(folder / "net/tcp", links), *_connections(folder / "net/tcp6", links)]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return {
        "pid": pid,
        "rdma": sorted({link.removeprefix("/dev/infiniband/") for link in links if link.startswith("/dev/infiniband/uverbs")}),
        "tcp": len(tcp),
        "settings": dict(line.split("=", 1) for line in environment if line.startswith(_SETTINGS) and "=" in line),
    }


def _links(folder: Path) -> list[str]:
    found = []
    for path in folder.iterdir():
        with suppress(OSError):  # closed since
            found.append(os.readlink(path))
    return found


def _connections(table: Path, links: list[str]) -> list[str]:
    """Local addresses of this process's established connections, in the kernel's spelling."""
    mine = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]] if table.exists() else []
    return [row[1] for row in rows if len(row) > 9 and row[3] == _ESTABLISHED and row[9] in mine]
