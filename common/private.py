"""Files and directories that only this user may reach.

What other users can write, they can plant: a lock file, a socket that answers in a tier's place, a key. What they can read, they
can keep: pages hold users' prompts.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pegaflow.common.wire.errors import ErrorCode, LocalError

MAX_SECRET_BYTES = 4096


def private_directory(path: Path) -> Path:
    """Makes the directory 0700 if it is missing. Raises `unsafe_path` if it is there and others could reach into it.

    Missing parents are made 0755: what stands above may be shared, but not so that others could put another directory here.
    """
    try:
        for parent in reversed(path.parents):
            if not parent.exists():
                parent.mkdir(mode=0o755, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        info, entry, above = path.stat(), path.lstat(), path.parent.stat()
    except OSError as error:
        raise LocalError(ErrorCode.UNSAFE_PATH, f"{path}: {error.strerror}") from None
    if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
        raise LocalError(ErrorCode.UNSAFE_PATH, f"{path.parent} is open to everybody, who could put another {path.name} there")
    me = os.getuid()
    if info.st_uid != me or entry.st_uid not in (me, 0):  # a link of somebody else's could lead elsewhere in a moment
        raise LocalError(ErrorCode.UNSAFE_PATH, f"{path} belongs to user {info.st_uid}, this process runs as user {me}")
    if mode := stat.S_IMODE(info.st_mode) & 0o077:
        raise LocalError(
            ErrorCode.UNSAFE_PATH, f"{path} is open to other users (mode {mode | 0o700:04o}): chmod 0700, or name another one"
        )
    return path


def open_own(path: Path | str, flags: int, dir_fd: int | None = None) -> int:
    """A descriptor of a plain file of this user with one name, made 0600 if `flags` say O_CREAT. Raises `unsafe_path`.

    A link would lead to another file, a fifo would keep the reader waiting.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=dir_fd)
    except OSError as error:
        raise LocalError(ErrorCode.UNSAFE_PATH, f"{path}: {error.strerror}") from None
    info = os.fstat(fd)
    if stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid() and info.st_nlink == 1:
        return fd
    os.close(fd)
    raise LocalError(ErrorCode.UNSAFE_PATH, f"{path} is not a plain file of this user: remove it")


def read_secret(path: Path) -> str:
    """The text of a small file that only its owner may read. Raises `unsafe_path`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LocalError(ErrorCode.UNSAFE_PATH, f"{path}: {error.strerror}") from None
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise LocalError(ErrorCode.UNSAFE_PATH, f"{path} is no file")
        if why := _shared(path, info):
            raise LocalError(ErrorCode.UNSAFE_PATH, why)
        return os.read(fd, MAX_SECRET_BYTES).decode("ascii")
    except UnicodeDecodeError:
        raise LocalError(ErrorCode.UNSAFE_PATH, f"{path} is no text") from None
    finally:
        os.close(fd)


def shared_secret(path: Path) -> str:
    """Why the secret in this file is not one's own, for people; empty: it is, or there is no such file."""
    try:
        return _shared(path, path.stat())
    except OSError:
        return ""  # whoever reads it says so


def _shared(path: Path, info: os.stat_result) -> str:
    if info.st_uid not in (os.getuid(), 0):
        return f"{path} belongs to user {info.st_uid}: a secret is one's own, or root's"
    if info.st_mode & 0o077:
        return f"{path} holds a secret and is open to other users: chmod 0600"
    return ""


def write_secret(path: Path, text: str) -> None:
    """A new file 0600, whatever the umask. Raises FileExistsError: a secret is never overwritten."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        file.write(text)
