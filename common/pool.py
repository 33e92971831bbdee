"""The pool and its slot table: two files that the tier makes and every process of the node maps.

    pool    bytes of pages. A slot's number is (offset of its first byte) / GRANULE, so that any page size fits in and a slot
            number alone tells the place: offset = slot * GRANULE.
    table   one 128-byte entry per granule, used at the granules where a slot starts. Written by the tier only; engines map it
            read-only and look at the generation before and after each copy (docs/protocol.md 1.4).

    entry   0 generation u64 | 8 state u8 | 9 key length u8 | 10 shard u16 | 12 rows u32 | 16 length u64 | 24 holder u64
            32 checksum 16 B | 48 key 64 B | 112 grant u64 | 120 crc32 of bytes 8..120 | 124 zero

The generation is one aligned 64-bit store of its own: raised before anybody may write the slot, never reset. Both files are
sparse; the pool is backed chunk by chunk (`Pool.allocate`), so that nobody meets SIGBUS: only backed slots are granted.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from pegaflow.common.locks import try_lock
from pegaflow.common.wire.errors import ErrorCode, LocalError

GRANULE = 16 << 10
CHUNK_BYTES = 256 << 20
ENTRY_BYTES = 128
HEADER_BYTES = 4096
MAX_KEY_BYTES = 64
_MAGIC = b"PGSLOTS\1"
_HEADER = struct.Struct("=8sIIQQ")
_BACKED = HEADER_BYTES // 8 - 1  # the header's last word: bytes of the pool that have memory
_READ_STEP = 1 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_ENTRY = struct.Struct("=BBHIQQ16s64sQ")
_NO_CHECKSUM = bytes(16)


class SlotState(IntEnum):
    """States of a slot as the table keeps them. Anything else read from a table means: possibly granted."""

    FREE = 0
    GRANTED = 1
    SEALED = 2
    READING = 3
    QUARANTINED = 4


@dataclass(frozen=True, slots=True)
class SlotEntry:
    """What the table says of a slot besides its generation. `length` and `rows` describe the page in it."""

    state: SlotState
    key: bytes = b""
    shard: int = 0
    rows: int = 0
    length: int = 0
    holder: int = 0
    checksum: bytes = _NO_CHECKSUM
    grant: int = 0


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
    if writable:  # without the interpreter lock, which `mmap.madvise` keeps
        first = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(first)
        del first
        _LIBC.madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE)
        return
    with suppress(OSError):
        for step in range(start, start + length, _READ_STEP):
            mapping.madvise(_MADV_POPULATE_READ, step, min(_READ_STEP, start + length - step))


def table_bytes(pool_bytes: int) -> int:
    """Size of the table file for a pool."""
    return HEADER_BYTES + ENTRY_BYTES * (pool_bytes // GRANULE)


def _load(table: mmap.mmap, slot: int) -> SlotEntry | None:
    at = HEADER_BYTES + ENTRY_BYTES * slot
    raw = table[at + 8 : at + 124]
    state, key_len, shard, rows, length, holder, checksum, key, grant = _ENTRY.unpack_from(raw, 0)
    if state not in SlotState._value2member_map_ or key_len > MAX_KEY_BYTES:
        return None
    if raw == bytes(len(raw)):
        return SlotEntry(SlotState.FREE)
    if struct.unpack_from("=I", raw, 112)[0] != zlib.crc32(raw[:112]):
        return None
    return SlotEntry(SlotState(state), key[:key_len], shard, rows, length, holder, checksum, grant)


class PoolView:
    """An engine's mapping of pool and table. Owns both mappings; whoever holds `memory` must let it go before `close()`."""

    def __init__(self, pool: mmap.mmap, table: mmap.mmap, writable: bool) -> None:
        self._pool, self._table = pool, table
        self.writable = writable
        self.memory = memoryview(pool)
        self._words = memoryview(table).cast("Q")

    @classmethod
    def open(cls, pool_path: Path, table_path: Path, pool_bytes: int, writable: bool) -> PoolView:
        """Maps both files. Raises `OSError`, or `pool_too_small` if a file is shorter than promised."""
        table = _map(table_path, table_bytes(pool_bytes), False)
        magic, _, granule, size, _ = _HEADER.unpack_from(table, 0)
        if magic != _MAGIC or granule != GRANULE or size != pool_bytes:
            table.close()
            raise LocalError(ErrorCode.LAYOUT_MISMATCH, f"{table_path.name} is not the slot table of this pool")
        return cls(_map(pool_path, pool_bytes, writable), table, writable)

    def generation(self, slot: int) -> int:
        """The slot's generation: one aligned load."""
        return self._words[(HEADER_BYTES + ENTRY_BYTES * slot) >> 3]

    def load(self, slot: int) -> SlotEntry | None:
        """The slot's entry, for those who look on: None if it is torn or makes no sense."""
        return _load(self._table, slot)

    @property
    def backed(self) -> int:
        """Bytes of the pool that have memory by now."""
        return self._words[_BACKED]

    def populate(self, start: int, length: int) -> None:
        """Makes first copies through these bytes as fast as later ones; they must be backed. Blocking (a few ms per 64 MiB)."""
        _populate(self._pool, start, length, self.writable)

    def close(self) -> None:
        """Unmaps. Raises `BufferError` while somebody still holds a view of the memory."""
        self.memory.release()
        self._pool.close()
        self._words.release()
        self._table.close()


class Pool:
    """The tier's pool and table: made anew under names of their own, exclusively locked for life, removed by `close()`.

    The lock is on a file beside the table rather than on the table itself: it has one inode for ever, so a second tier meets the
    same lock however often the table was replaced.
    """

    def __init__(
        self, directory: Path, lock_fd: int, pool_path: Path, table_path: Path, size: int, pool_fd: int, table: mmap.mmap
    ) -> None:
        self.directory, self.path, self.table_path, self.size = directory, pool_path, table_path, size
        self.allocated = 0
        self._lock_fd, self._pool_fd, self._table = lock_fd, pool_fd, table
        self._words = memoryview(table).cast("Q")
        self._mapping = _map(pool_path, size, True)
        self.memory = memoryview(self._mapping)

    @classmethod
    def create(cls, directory: Path, size: int, epoch: int) -> Pool:
        """Locks the directory and makes a new, unbacked pool of `size` bytes (a multiple of GRANULE).

        Files of earlier lives lose their names; processes that still map them keep the memory, which is never handed out anew.
        Raises `pool_busy` if another tier holds the directory, `pool_too_large` if memory or file system cannot back it.
        """
        if size <= 0 or size % GRANULE:
            raise LocalError(ErrorCode.BAD_CONFIG, f"pool size {size} is not a multiple of {GRANULE}")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if not try_lock(lock_fd):
            os.close(lock_fd)
            raise LocalError(ErrorCode.POOL_BUSY, f"another tier uses the pool directory {directory}")
        for old in [*directory.glob("pool-*"), *directory.glob("table-*")]:
            old.unlink(missing_ok=True)
        try:
            cls._check_room(directory, size)
        except LocalError:
            os.close(lock_fd)
            raise
        name = f"{epoch:016x}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        pool_path, table_path = directory / f"pool-{name}", directory / f"table-{name}"
        pool_fd = os.open(pool_path, flags, 0o600)
        os.ftruncate(pool_fd, size)
        table_fd = os.open(table_path, flags, 0o600)
        os.ftruncate(table_fd, table_bytes(size))
        os.close(table_fd)
        table = _map(table_path, table_bytes(size), True)
        _HEADER.pack_into(table, 0, _MAGIC, 1, GRANULE, size, epoch)
        return cls(directory, lock_fd, pool_path, table_path, size, pool_fd, table)

    @staticmethod
    def _check_room(directory: Path, size: int) -> None:
        stats = os.statvfs(directory)
        free = stats.f_bavail * stats.f_frsize
        available = free
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
        room = min(free, available)
        if size > room:
            raise LocalError(
                ErrorCode.POOL_TOO_LARGE,
                f"a pool of {size >> 20} MiB does not fit: its file system has {free >> 20} MiB free, "
                f"memory has {available >> 20} MiB available",
            )

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
        _populate(self._mapping, start, length, True)
        self.allocated = self._words[_BACKED] = start + length
        return self.allocated

    def generation(self, slot: int) -> int:
        return self._words[(HEADER_BYTES + ENTRY_BYTES * slot) >> 3]

    def raise_generation(self, slot: int, generation: int) -> None:
        """Stores a higher generation. Raises `ValueError` if it is not higher: a generation never goes back."""
        index = (HEADER_BYTES + ENTRY_BYTES * slot) >> 3
        if generation <= self._words[index]:
            raise ValueError(f"slot {slot}: generation {generation} is not above {self._words[index]}")
        self._words[index] = generation

    def store(self, slot: int, entry: SlotEntry) -> None:
        """Writes everything but the generation."""
        at = HEADER_BYTES + ENTRY_BYTES * slot
        _ENTRY.pack_into(
            self._table,
            at + 8,
            entry.state,
            len(entry.key),
            entry.shard,
            entry.rows,
            entry.length,
            entry.holder,
            entry.checksum,
            entry.key,
            entry.grant,
        )
        struct.pack_into("=I", self._table, at + 120, zlib.crc32(self._table[at + 8 : at + 120]))

    def load(self, slot: int) -> SlotEntry | None:
        """Reads an entry back; None if it is torn or makes no sense."""
        return _load(self._table, slot)

    def close(self) -> None:
        """Removes both files and unlocks. The memory lives on while others map it."""
        self.path.unlink(missing_ok=True)
        self.table_path.unlink(missing_ok=True)
        self.memory.release()
        self._mapping.close()
        self._words.release()
        self._table.close()
        os.close(self._pool_fd)
        os.close(self._lock_fd)
