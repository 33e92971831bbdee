"""Process locks: the proof that a process which may write the pool is dead (docs/protocol.md 1.2, 1.3).

An OFD write lock belongs to the open file description: it goes when the last descriptor of that description goes, hence with
the process, however it dies; it does not go when some other descriptor of the same file is closed (POSIX locks do), and another
process can ask whether it is held (flock cannot be asked).

    holder    ProcessLock.acquire(directory)     before mapping the pool; close() after unmapping, never an unlock
    tier      LockProbe(directory, name, nonce)  opens once, keeps the descriptor, asks with F_OFD_GETLK
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import struct
from pathlib import Path

from pegaflow.common.private import private_directory
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError

NAME_HEX = 32
NONCE_BYTES = 16
UNLOCKED = "."
"""Before the name of a lock file whose process is about to lock it."""
FOREIGN_S = 5.0
_FLOCK = "hhqqi"  # struct flock on 64-bit Linux: type, whence, start, len, pid


def is_lock_name(name: str) -> bool:
    """Is this what a lock file is called once it is locked?"""
    return len(name) == NAME_HEX and set(name) <= set("0123456789abcdef")


def try_lock(fd: int) -> bool:
    """Takes an OFD write lock on the whole file. False if another open file description holds one."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_locked(fd: int) -> bool:
    """True while another open file description holds a lock on the file."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


class ProcessLock:
    """A lock of this process's own, under a fresh random name. Owns its descriptor; forked children close it."""

    def __init__(self, name: str, nonce: bytes, fd: int) -> None:
        self.name = name
        self.nonce = nonce
        self._fd = fd
        os.register_at_fork(after_in_child=self.close)

    @classmethod
    def acquire(cls, directory: Path) -> ProcessLock:
        """Makes and locks `<directory>/<32 hex>`. The directory, and the runtime directory that it is in, are created 0700.

        The file gets its name when it is locked: one with such a name that nobody has locked belongs to a dead process.
        Raises `unsafe_path` where others could reach into them: a tier of somebody else's may be listening there.
        """
        private_directory(directory.parent)
        private_directory(directory)
        name, nonce = os.urandom(NAME_HEX // 2).hex(), os.urandom(NONCE_BYTES)
        unnamed = directory / f"{UNLOCKED}{name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(unnamed, flags, 0o600)
        try:
            os.write(fd, nonce)
            if not try_lock(fd):
                raise LocalError(
                    ErrorCode.INTERNAL, "a fresh lock file is locked: is the runtime directory on a local file system?"
                )
            os.rename(unnamed, directory / name)
        except BaseException:
            os.close(fd)
            unnamed.unlink(missing_ok=True)
            raise
        return cls(name, nonce, fd)

    def close(self) -> None:
        """Drops the lock by closing; the tier unlinks the file. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class LockProbe:
    """The tier's view of one process's lock. Owns its descriptors; never opens the path again.

    `pid` 0: a free lock is the proof of death. Else a device copies for the process and may go on after the kernel has closed its
    descriptors: then the process itself must be gone too (pidfd), or, where its pid means nothing here (another pid namespace),
    the lock free for FOREIGN_S.
    """

    def __init__(self, directory: Path, name: str, nonce: bytes, pid: int = 0) -> None:
        if not is_lock_name(name):
            raise RemoteError(ErrorCode.BAD_MEMBER, "a lock name is 32 hex digits")
        self._directory, self.name = directory, name
        parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        except OSError as error:
            raise RemoteError(
                ErrorCode.LOCK_NOT_VISIBLE, f"lock file of the process is not in the tier's runtime directory: {error.strerror}"
            ) from None
        finally:
            os.close(parent)
        self._process = -1
        self._device = pid != 0
        self._free_since = 0.0
        try:
            self._check(nonce)
            if pid and _has_open(pid, self._fd):
                self._process = os.pidfd_open(pid)
        except (RemoteError, OSError) as error:
            self.close()
            if isinstance(error, RemoteError):
                raise
            raise RemoteError(ErrorCode.LOCK_NOT_VISIBLE, f"process {pid} has gone") from None

    def _check(self, nonce: bytes) -> None:
        info = os.fstat(self._fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or info.st_uid not in (os.getuid(), 0):
            raise RemoteError(ErrorCode.BAD_MEMBER, "the lock file is not a plain file of the expected owner")
        if os.pread(self._fd, NONCE_BYTES + 1, 0) != nonce:
            raise RemoteError(ErrorCode.BAD_MEMBER, "the nonce in the lock file is not the one that was sent")
        if not self.held():
            raise RemoteError(
                ErrorCode.LOCK_NOT_VISIBLE, "the lock is not seen held: do both run on one kernel and local file system?"
            )

    def held(self) -> bool:
        """Is the lock held?"""
        return is_locked(self._fd)

    def dead(self, now: float) -> bool:
        """True is the proof that this process writes no more."""
        if self.held():
            return False
        if not self._device:
            return True
        if self._process >= 0:
            return bool(select.select([self._process], [], [], 0)[0])
        self._free_since = self._free_since or now
        return now - self._free_since >= FOREIGN_S

    def unlink(self) -> None:
        """Removes the file of a process proven dead."""
        (self._directory / self.name).unlink(missing_ok=True)

    def close(self) -> None:
        for fd in (self._fd, self._process):
            if fd >= 0:
                os.close(fd)
        self._fd = self._process = -1


def _has_open(pid: int, fd: int) -> bool:
    """Does process `pid` have the same file open as our `fd`? False also where the pid is not one of this namespace."""
    mine = os.fstat(fd)
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                other = link.stat()
                if (other.st_dev, other.st_ino) == (mine.st_dev, mine.st_ino):
                    return True
    except OSError:
        return False
    return False
