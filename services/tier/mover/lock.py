"""The lock that proves a mover's life or death, and the end of movers that an earlier tier left behind.

    <runtime>/mover/<32 hex>.lock     OFD write lock of one mover, taken before it maps the pool; "pid start-time" inside

An OFD lock (F_OFD_SETLK) belongs to the open file, not to the process: it ends when the mover's descriptor is closed,
that is when the process is gone, and other processes can probe it. The start time (field 22 of /proc/<pid>/stat) tells
the mover from a process that got its pid later.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pegaflow.common.private import private_directory

# struct flock of x86-64 and aarch64: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("@hhqqi4x")
_NAME: Final = re.compile(r"[0-9a-f]{32}\.lock")
_PROBE_S: Final = 0.01


class LockBusy(Exception):
    """A lock is still held; the text says by whom."""


def directory(runtime: Path) -> Path:
    """Where the locks of this node's movers are."""
    return runtime / "mover"


def path_for(runtime: Path, token: str) -> Path:
    """The lock file of the mover named `token` (32 hex digits)."""
    return directory(runtime) / f"{token}.lock"


def take(path: Path) -> int:
    """Creates and locks `path` for the life of this process; returns the descriptor, which must stay open.

    Raises FileExistsError if the name was used before, LockBusy if somebody else was quicker.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK))
    except OSError as error:
        os.close(fd)
        raise LockBusy(f"{path}: {os.strerror(error.errno or 0)}") from None
    pid = os.getpid()
    os.write(fd, f"{pid} {start_time(pid)}\n".encode())
    return fd


def held(fd: int) -> bool:
    """Somebody else holds the lock of this open file."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
    kind: int = _FLOCK.unpack(answer)[0]
    return kind != fcntl.F_UNLCK


def start_time(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None if there is no such process or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name in parentheses may contain anything, also parentheses and spaces.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def end_left_overs(runtime: Path, timeout_s: float, *, clock: Callable[[], float] = time.monotonic) -> list[int]:
    """Kills movers of an earlier tier and returns their pids once every lock is free. Blocks up to `timeout_s`.

    The caller must be the only tier of `runtime` (it holds the pool's lock). Raises LockBusy when a lock stays held: then
    something may still land in the pool, and nothing of it may be handed out.
    """
    where = directory(runtime)
    private_directory(where)
    deadline = clock() + timeout_s
    killed: list[int] = []
    for name in sorted(os.listdir(where)):
        if _NAME.fullmatch(name):
            killed += _end_one(where / name, deadline, clock)
    return killed


def _end_one(path: Path, deadline: float, clock: Callable[[], float]) -> list[int]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return []
        raise LockBusy(f"{path}: {os.strerror(error.errno or 0)}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise LockBusy(f"{path} is no regular file")
        killed: list[tuple[int, int]] = []
        while held(fd):
            # The content may lag behind the lock by an instant, so it is read anew each time.
            owner = _owner(fd)
            if owner is not None and owner not in killed and _kill(*owner):
                killed.append(owner)
            if clock() >= deadline:
                raise LockBusy(f"{path} is still held by {owner[0] if owner else 'an unknown process'}")
            time.sleep(_PROBE_S)
        path.unlink(missing_ok=True)
        return [pid for pid, _ in killed]
    finally:
        os.close(fd)


def _owner(fd: int) -> tuple[int, int] | None:
    match = re.fullmatch(rb"(\d{1,10}) (\d{1,20})\n", os.pread(fd, 64, 0))
    return (int(match[1]), int(match[2])) if match else None


def _kill(pid: int, started: int) -> bool:
    """SIGKILL, if `pid` is still the process that began at `started`. A pidfd keeps the pid from being reused in between."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def _flock(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
