"""The pool and its slot table: two files that the tier makes and every process of the node maps.

    pool    bytes of pages. A slot's number is (offset of its first byte) / GRANULE, so that any page size fits in and a slot
            number alone tells the place: offset = slot * GRANULE.
    table   what is in each slot, see slot_table.py. Written by the tier only; engines map it read-only and look at the
            generation before and after each copy (docs/protocol.md 1.4).

Both are sparse; the pool is backed chunk by chunk (`Pool.allocate`), so that nobody meets SIGBUS: only backed slots are granted.
Both outlive the tier: the next life takes them over if they fit, else it removes them and makes new ones under new names.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from contextlib import suppress
from pathlib import Path

from pegaflow.common.locks import try_lock
from pegaflow.common.private import open_own, private_directory
from pegaflow.common.slot_table import GRANULE, Identity, Row, SlotEntry, SlotState, SlotTable, directory_bytes, table_bytes
from pegaflow.common.wire.errors import ErrorCode, LocalError

__all__ = ["CHUNK_BYTES", "GRANULE", "Pool", "PoolView", "SlotEntry", "SlotState", "populate", "table_bytes"]

CHUNK_BYTES = 256 << 20
_READ_STEP = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23


def _map(path: Path, size: int, writable: bool) -> mmap.mmap:
    fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_size < size:
            raise LocalError(ErrorCode.POOL_TOO_SMALL, f"{path.name} has fewer than {size} bytes")
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapping = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=prot)
    finally:
        os.close(fd)
    mapping.madvise(mmap.MADV_DONTFORK)
    with suppress(OSError, AttributeError):  # not every kernel offers huge pages for shared memory
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _populate(mapping: mmap.mmap, start: int, length: int, writable: bool) -> None:
    """Enters pages that have memory into this process's page table.

    Otherwise the first copy through each 4 KiB costs a page fault, and first saves and loads run at a fifth of memory speed.
    Kernels before 5.14 do not know the advice; there the faults come as they come.
    """
    if writable:
        first = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(first)
        del first
        populate(address + start, length)
        return
    with suppress(OSError):
        for step in range(start, start + length, _READ_STEP):
            mapping.madvise(_MADV_POPULATE_READ, step, min(_READ_STEP, start + length - step))


def populate(address: int, length: int) -> None:
    """The same for bytes of a writable mapping, by their address and without the interpreter lock, which `mmap.madvise` keeps.

    They must have memory: what has none would get it here.
    """
    _LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)


class PoolView:
    """An engine's mapping of pool and table. Owns both mappings; whoever holds `memory` must let it go before `close()`."""

    def __init__(self, pool: mmap.mmap, table: mmap.mmap, writable: bool) -> None:
        self._pool, self._mapping = pool, table
        self._table = SlotTable(memoryview(table))
        self.writable = writable
        self.memory = memoryview(pool)
        self.generation = self._table.generation
        """`generation(slot)`: one aligned load."""

    @classmethod
    def open(cls, pool_path: Path, table_path: Path, pool_bytes: int, writable: bool) -> PoolView:
        """Maps both files. Raises `OSError`, or `pool_too_small` if a file is shorter than promised."""
        mapping = _map(table_path, table_bytes(pool_bytes), False)
        table = SlotTable(memoryview(mapping))
        fits = table.readable(pool_bytes)
        table.release()
        if not fits:
            mapping.close()
            raise LocalError(ErrorCode.LAYOUT_MISMATCH, f"{table_path.name} is not the slot table of this pool")
        return cls(_map(pool_path, pool_bytes, writable), mapping, writable)

    def load(self, slot: int) -> SlotEntry | None:
        """The slot's entry, for those who look on: None if it is torn or makes no sense."""
        return self._table.load(slot)

    @property
    def backed(self) -> int:
        """Bytes of the pool that have memory by now."""
        return self._table.backed

    def populate(self, start: int, length: int) -> None:
        """Makes first copies through these bytes as fast as later ones; they must be backed. Blocking (a few ms per 64 MiB)."""
        _populate(self._pool, start, length, self.writable)

    def close(self) -> None:
        """Unmaps. Raises `BufferError` while somebody still holds a view of the memory."""
        self.memory.release()
        self._pool.close()
        self._table.release()
        self._mapping.close()


class Pool:
    """The tier's pool and table: exclusively locked for life; taken over from the life before, or made anew.

    `adopted`: taken over; `refused`: files of earlier lives that were not, with the reason for each. The lock is on a file beside
    the table rather than on the table itself: it has one inode for ever, so a second tier meets the same lock however often the
    table was replaced.
    """

    def __init__(
        self, directory: Path, lock_fd: int, pool_path: Path, table_path: Path, identity: Identity, refused: dict[str, str]
    ) -> None:
        self.directory, self.path, self.table_path = directory, pool_path, table_path
        self.size, self.slab, self.refused = identity.pool_bytes, identity.slab, refused
        self._lock_fd = lock_fd
        self._pool_fd = os.open(pool_path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._table_map = _map(table_path, table_bytes(self.size) + directory_bytes(self.size, self.slab), True)
        self.table = SlotTable(memoryview(self._table_map))
        self._mapping = _map(pool_path, self.size, True)
        self.memory = memoryview(self._mapping)
        self.allocated = self.table.backed
        self._populated = 0
        self.adopted = False

    @classmethod
    def open(cls, directory: Path, identity: Identity, epoch: int, *, warm: bool = True) -> Pool:
        """Locks the directory and takes its pool over, or makes a new, unbacked one of `identity.pool_bytes`.

        Files that do not fit lose their names; processes that still map them keep the memory, which is never handed out anew.
        Raises `pool_busy` if another tier holds the directory, `pool_too_large` if memory or file system cannot back it,
        `unsafe_path` if other users could reach into it.
        """
        if identity.pool_bytes <= 0 or identity.pool_bytes % GRANULE:
            raise LocalError(ErrorCode.BAD_CONFIG, f"pool size {identity.pool_bytes} is not a multiple of {GRANULE}")
        private_directory(directory)
        lock_fd = open_own(directory / "lock", os.O_RDWR | os.O_CREAT)
        if not try_lock(lock_fd):
            os.close(lock_fd)
            raise LocalError(ErrorCode.POOL_BUSY, f"another tier uses the pool directory {directory}")
        try:
            return cls._open(directory, lock_fd, identity, epoch, warm)
        except BaseException:
            os.close(lock_fd)
            raise

    @classmethod
    def _open(cls, directory: Path, lock_fd: int, identity: Identity, epoch: int, warm: bool) -> Pool:
        refused: dict[str, str] = {}
        found = None
        for table_path in sorted(directory.glob("table-*")):
            pool_path = directory / table_path.name.replace("table-", "pool-", 1)
            reason = _misfit(pool_path, table_path, identity) if warm else "warm_restart_off"
            if not reason and found is None:
                found = pool_path, table_path
            else:
                refused[table_path.name] = reason or "second_pool"
        for old in [*directory.glob("pool-*"), *directory.glob("table-*")]:
            if found is None or old not in found:
                with suppress(IsADirectoryError, PermissionError):  # a directory: not ours, and in nobody's way
                    old.unlink(missing_ok=True)
        if found is not None:
            pool = cls(directory, lock_fd, *found, identity, refused)
            pool._check_room()
            pool.table.take_over(epoch)
            pool.adopted = True
            return pool
        _check_room(directory, identity.pool_bytes)
        name = f"{epoch:016x}"
        pool_path, table_path = directory / f"pool-{name}", directory / f"table-{name}"
        inode = _make(pool_path, identity.pool_bytes)
        _make(table_path, table_bytes(identity.pool_bytes) + directory_bytes(identity.pool_bytes, identity.slab))
        pool = cls(directory, lock_fd, pool_path, table_path, identity, refused)
        pool.table.begin(identity, inode, epoch)
        return pool

    def _check_room(self) -> None:
        try:
            _check_room(self.directory, self.size - self.allocated)
        except LocalError:
            self._unmap()
            raise

    def allocate(self) -> int:
        """Backs the next chunk with memory (blocking; call it off the event loop). Returns the bytes backed so far."""
        start = self.allocated
        if start >= self.size:
            return start
        length = min(CHUNK_BYTES, self.size - start)
        try:
            os.posix_fallocate(self._pool_fd, start, length)
        except OSError as error:
            raise LocalError(
                ErrorCode.POOL_TOO_LARGE, f"no memory for the pool beyond {start >> 20} MiB: {error.strerror}"
            ) from None
        if self._populated == start:
            self.populate(start + length)
        self.allocated = self.table.backed = start + length
        return self.allocated

    def populate(self, until: int = 0) -> bool:
        """Enters the next chunk that has memory into the page table (blocking, as `allocate`). False: nothing is left."""
        start = self._populated
        length = min(CHUNK_BYTES, (until or self.allocated) - start)
        if length <= 0:
            return False
        _populate(self._mapping, start, length, True)
        self._populated += length
        return True

    def slabs(self) -> list[tuple[int, int]]:
        """First granule and slot size of every slab that the life before has cut; size 0: doubtful."""
        return list(self.table.slabs())

    def rows(self, first: int, size: int) -> list[Row]:
        """The slots of one slab that are not free, as the life before left them."""
        return self.table.rows(first, size)

    def close(self, keep: bool) -> None:
        """Unlocks; without `keep` removes both files first. The memory lives on while others map it."""
        self.leave(keep)
        self._unmap()
        os.close(self._lock_fd)

    def leave(self, keep: bool) -> None:
        """The names only, as `close`: mapping and lock go when the process ends."""
        if not keep:
            self.path.unlink(missing_ok=True)
            self.table_path.unlink(missing_ok=True)

    def _unmap(self) -> None:
        self.memory.release()
        self._mapping.close()
        self.table.release()
        self._table_map.close()
        os.close(self._pool_fd)


def _make(path: Path, size: int) -> int:
    """A new sparse file; returns its inode."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _misfit(pool_path: Path, table_path: Path, identity: Identity) -> str:
    """Why these two files cannot be taken over; empty if they can. Nothing of them is changed."""
    try:
        pool, table = os.lstat(pool_path), os.lstat(table_path)
    except OSError:
        return "pool_missing"
    for info in (pool, table):
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.getuid() or info.st_nlink != 1:
            return "not_ours"
    size = table_bytes(identity.pool_bytes) + directory_bytes(identity.pool_bytes, identity.slab)
    if pool.st_size != identity.pool_bytes or table.st_size != size:
        return "other_size"
    mapping = _map(table_path, size, False)
    slots = SlotTable(memoryview(mapping))
    try:
        reason = slots.misfit(identity, pool.st_ino)
        return reason or ("not_backed" if pool.st_blocks * 512 < slots.backed else "")
    finally:
        slots.release()
        mapping.close()


def room(directory: Path) -> tuple[int, int]:
    """Bytes that its file system has free, and bytes of memory that are available."""
    stats = os.statvfs(directory)
    free = available = stats.f_bavail * stats.f_frsize
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    return free, available


def _check_room(directory: Path, size: int) -> None:
    free, available = room(directory)
    if size > min(free, available):
        raise LocalError(
            ErrorCode.POOL_TOO_LARGE,
            f"a pool of {size >> 20} MiB does not fit: its file system has {free >> 20} MiB free, "
            f"memory has {available >> 20} MiB available",
        )
