"""What a new life of the tier finds in the directory of lock files: which processes of earlier lives live, which are dead.

A lock that was held at the start stays open and is asked like any other, until its process attaches again or is proven dead. The
directory has an identity of its own: a pool belongs to the directory that names its writers, and to no other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pegaflow.common.locks import NONCE_BYTES, is_lock_name, is_locked
from pegaflow.common.private import open_own
from pegaflow.services.tier.sessions import holder_word

IDENTITY = ".identity"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_identity() -> bytes:
    """16 bytes that are other ones after a reboot."""
    return bytes.fromhex(_BOOT_ID.read_text(encoding="ascii").strip().replace("-", ""))


def directory_identity(directory: Path) -> bytes:
    """16 random bytes that live and die with the directory; made if they are missing. Raises `unsafe_path`."""
    path = directory / IDENTITY
    while not os.path.lexists(path):
        fresh = directory / f"{IDENTITY}.{os.urandom(8).hex()}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, os.urandom(NONCE_BYTES))
            with suppress(FileExistsError, FileNotFoundError):  # another start was first, and may have cleaned up behind itself
                os.link(fresh, path)  # whole or not at all
        finally:
            os.close(fd)
            fresh.unlink(missing_ok=True)
    for stray in directory.glob(f"{IDENTITY}.*"):  # of a start that was killed in between
        stray.unlink(missing_ok=True)
    fd = open_own(path, os.O_RDONLY)
    try:
        return os.read(fd, NONCE_BYTES)
    finally:
        os.close(fd)


class OldLocks:
    """Owns one descriptor per lock that was held at the start. `dead`: processes whose locks were free; their files are gone."""

    def __init__(self, directory: Path, free: Callable[[int], None]) -> None:
        self._free = free
        self._held: dict[int, tuple[Path, int]] = {}
        self.dead: set[int] = set()
        for path in directory.iterdir():
            if is_lock_name(path.name):
                self._take(path)

    def _take(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # not ours: a tier that cannot open a lock has let nobody in with it
            return
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # a fifo opens like a file
            os.close(fd)
            return
        nonce = os.pread(fd, NONCE_BYTES, 0)
        if len(nonce) == NONCE_BYTES and is_locked(fd):
            self._held[holder_word(nonce)] = (path, fd)
            return
        if not is_locked(fd):  # else its process has not got so far as to attach
            path.unlink(missing_ok=True)
            if len(nonce) == NONCE_BYTES:
                self.dead.add(holder_word(nonce))
        os.close(fd)

    @property
    def held(self) -> frozenset[int]:
        return frozenset(self._held)

    def names(self) -> set[str]:
        """Of the files that are still asked."""
        return {path.name for path, _ in self._held.values()}

    def look(self) -> None:
        """Tells whose lock is free now."""
        for word, (path, fd) in list(self._held.items()):
            if not is_locked(fd):
                path.unlink(missing_ok=True)
                self.forget(word)
                self._free(word)

    def forget(self, word: int) -> None:
        """It attached again: from now on it is watched as a member."""
        _, fd = self._held.pop(word, (None, -1))
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        for word in list(self._held):
            self.forget(word)
