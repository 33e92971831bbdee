"""What this process is made of and what its machine allows it, for `pegaflow doctor`. Only looks."""

from __future__ import annotations

import os
import platform
import resource
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import zmq
from pegaflow.common.version import package_version
from pegaflow.common.wire.version import PROTOCOL

MAX_FOLDER_FILES = 1000
SECRET_FILES = ("curve_key_file", "disk_key_file", "tls_key", "api_keys_file")
"""Options that name a file whose content is a secret."""
_HUGE = Path("/sys/kernel/mm/hugepages")
_RDMA = Path("/sys/class/infiniband")


def facts(paths: Mapping[str, Path], distributions: Iterable[str] = ()) -> dict[str, Any]:
    """JSON-able. `paths`: what → a file or folder whose mode and room matter; `distributions`: packages whose version matters."""
    return {
        "wall_ns": time.time_ns(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "uid": os.getuid(),
        "versions": versions(distributions),
        "limits": {"memlock": _limit(resource.RLIMIT_MEMLOCK), "nofile": _limit(resource.RLIMIT_NOFILE)},
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "huge_pages": huge_pages(),
        "rdma_devices": sorted(path.name for path in _RDMA.iterdir()) if _RDMA.is_dir() else [],
        "paths": [entry(what, path) for what, path in paths.items()],
    }


def secret_files(config: object) -> dict[str, Path]:
    """Those that a configuration names, for `facts`."""
    return {name: Path(str(path)) for name in SECRET_FILES if (path := getattr(config, name, ""))}


def versions(distributions: Iterable[str] = ()) -> dict[str, str]:
    """By name; a package that is not installed is left out."""
    found = {
        "pegaflow": package_version(),
        "protocol": str(PROTOCOL),
        "python": platform.python_version(),
        "pyzmq": zmq.__version__,
        "libzmq": zmq.zmq_version(),
        "kernel": platform.release(),
    }
    for name in distributions:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _limit(which: int) -> int | None:
    """The soft limit; None: there is none."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def huge_pages() -> list[dict[str, int]]:
    """Per size: bytes of one, how many there are and how many are free."""
    found = []
    for folder in sorted(_HUGE.glob("hugepages-*kB")):
        with suppress(OSError, ValueError):
            counts = {name: int((folder / f"{name}_hugepages").read_text()) for name in ("nr", "free")}
            size = int(folder.name.removeprefix("hugepages-").removesuffix("kB")) << 10
            found.append({"page_bytes": size, "total": counts["nr"], "free": counts["free"]})
    return found


def entry(what: str, path: Path) -> dict[str, Any]:
    """Mode, owner and, of a folder, room and which of its files others may read. `code` if it cannot be looked at."""
    told: dict[str, Any] = {"what": what, "path": str(path)}
    try:
        status = path.lstat()
        told |= {"mode": f"{stat.S_IMODE(status.st_mode):04o}", "uid": status.st_uid}
        if stat.S_ISDIR(status.st_mode):
            room = os.statvfs(path)
            told |= {"total_bytes": room.f_blocks * room.f_frsize, "free_bytes": room.f_bavail * room.f_frsize}
            told["open_files"] = _open_files(path)
    except OSError as error:
        told["code"] = os.strerror(error.errno or 0)
    return told


def _open_files(folder: Path) -> list[str]:
    """Names of files in it, the first few, that users other than the owner may read or write. Sockets: only write counts."""
    found = []
    for number, path in enumerate(folder.iterdir()):
        if number >= MAX_FOLDER_FILES:
            break
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            others = 0o022 if stat.S_ISSOCK(mode) else 0o077
            if not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode) and mode & others:
                found.append(f"{path.name} {stat.S_IMODE(mode):04o}")
    return sorted(found)[:8]
