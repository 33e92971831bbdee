"""The slot table, pure: what lies beside the pool and outlives the tier that wrote it (docs/protocol.md 1.4, 1.5, 1.7).

    table   header (4 KiB) │ one 128-byte entry per granule, used where a slot starts │ slab directory, 8 bytes per slab

    header  0 magic | 8 version u32 | 12 granule u32 | 16 pool bytes u64 | 24 epoch u64 | 32 boot id 16 B | 48 sessions id 16 B
            64 granules of a slab u32 | 68 entry bytes u32 | 72 inode of the pool u64 | 80 crc32 of all these but the epoch
            4072 readers_until in ms, 4080 life, 4088 bytes of the pool that have memory: one aligned 64-bit store each
    entry   0 generation u64 | 8 state u8 | 9 key length u8 | 10 shard u16 | 12 shards u16 | 14 rows u16 | 16 length u32
            20 order u32 | 24 holder u64 | 32 checksum 16 B | 48 key 64 B | 112 grant u64 | 120 crc32 of 8..120 | 124 age u32
    slab    size of its slots in granules u32 | a check of it u32; 0: not cut

A life's generations begin at life << LIFE_SHIFT, so they are above those of every earlier life without anybody reading these.
`holder` names the process that may write the slot by its lock's nonce, which is the same for every life of the tier.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from pegaflow.common.wire.columns import MAX_KEY_BYTES

GRANULE: Final = 16 << 10
ENTRY_BYTES: Final = 128
HEADER_BYTES: Final = 4096
LIFE_SHIFT: Final = 40
NO_CHECKSUM: Final = bytes(16)
MAX_ROWS: Final = 0xFFFF

_MAGIC, _VERSION = b"PGSLOTS\1", 2
_HEADER = struct.Struct("=8sIIQQ16s16sIIQ")
_HEADER_CRC, _EPOCH = _HEADER.size, slice(24, 32)
_READERS, _LIFE, _BACKED = HEADER_BYTES // 8 - 3, HEADER_BYTES // 8 - 2, HEADER_BYTES // 8 - 1
_MAX_LIFE = 1 << 23
_ENTRY = struct.Struct("=BBHHHIIQ16s64sQ")
_CRC = struct.Struct("=I")
_TAIL = struct.Struct("=II")
_SLAB_MARK = 0x51AB51AB
_ZERO = bytes(116)


class SlotState(IntEnum):
    """States of a slot as the table keeps them. Anything else read from a table means: possibly granted."""

    FREE = 0
    GRANTED = 1
    SEALED = 2
    READING = 3
    QUARANTINED = 4


_STATES = frozenset(int(state) for state in SlotState)


class SlotEntry(NamedTuple):
    """What the table says of a slot besides its generation. `length` and `rows` describe the page in it.

    `shard` of `shards`: which part of its key; (`grant`, `order`) is the same for all parts of one page and of no other page in
    any life; within a grant, later in the prefix means a higher `order`. `age`: 0, or its place in the recency of an orderly end.
    """

    state: SlotState
    key: bytes = b""
    shard: int = 0
    shards: int = 0
    rows: int = 0
    length: int = 0
    order: int = 0
    holder: int = 0
    checksum: bytes = NO_CHECKSUM
    grant: int = 0
    age: int = 0


class Row(NamedTuple):
    """A slot that is not free; `entry` None: torn, or it makes no sense."""

    slot: int
    generation: int
    entry: SlotEntry | None


class Identity(NamedTuple):
    """What must be the same for a life to take over what another one left; `boot` and `sessions` 16 bytes each.

    `sessions` names the directory of the lock files: with another one nobody could tell who of the old members is dead.
    """

    pool_bytes: int
    slab: int
    boot: bytes
    sessions: bytes


def table_bytes(pool_bytes: int) -> int:
    """Header and entries of a pool's table; the slab directory follows."""
    return HEADER_BYTES + ENTRY_BYTES * (pool_bytes // GRANULE)


def directory_bytes(pool_bytes: int, slab: int) -> int:
    """The slab directory behind the entries."""
    return 8 * -(-pool_bytes // GRANULE // slab)


def encode(entry: SlotEntry) -> bytes:
    """Bytes 8..128 of an entry."""
    # PERF: each page that comes and goes is stored three times; a free slot is always the same.
    return _encode(entry) if entry != FREE else _FREE + _NO_AGE


def _encode(entry: SlotEntry) -> bytes:
    state, key, shard, shards, rows, length, order, holder, checksum, grant, age = entry
    body = _ENTRY.pack(state, len(key), shard, shards, min(rows, MAX_ROWS), length, order, holder, checksum, key, grant)
    return body + _TAIL.pack(zlib.crc32(body), age)


FREE: Final = SlotEntry(SlotState.FREE)
_FREE = _encode(FREE)[:116]
_NO_AGE = bytes(4)


def decode(raw: bytes) -> SlotEntry | None:
    """From bytes 8..128. None if they are torn or make no sense."""
    if raw[:116] == _ZERO:
        return FREE
    state, key_len, shard, shards, rows, length, order, holder, checksum, key, grant = _ENTRY.unpack_from(raw)
    if state not in _STATES or key_len > MAX_KEY_BYTES or _CRC.unpack_from(raw, 112)[0] != zlib.crc32(raw[:112]):
        return None
    (age,) = _CRC.unpack_from(raw, 116)
    return SlotEntry(SlotState(state), key[:key_len], shard, shards, rows, length, order, holder, checksum, grant, age)


class SlotTable:
    """One table in somebody's mapping. Whoever owns `memory` calls `release` before letting it go."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._words = memory[: len(memory) // 8 * 8].cast("Q")

    def release(self) -> None:
        self._words.release()
        self._memory.release()

    # --- header ------------------------------------------------------------------------------------------------------

    def begin(self, identity: Identity, inode: int, epoch: int) -> None:
        """Makes a table of zeros that of a new pool, in its first life. The checksum comes last."""
        self._words[_READERS] = 1
        self._words[_LIFE] = _checked(1)
        body = (_MAGIC, _VERSION, GRANULE, identity.pool_bytes, epoch, identity.boot, identity.sessions, identity.slab)
        _HEADER.pack_into(self._memory, 0, *body, ENTRY_BYTES, inode)
        _CRC.pack_into(self._memory, _HEADER_CRC, self._header_crc())

    def take_over(self, epoch: int) -> None:
        """Begins another life: whatever follows, its generations are above those of every earlier one."""
        self._words[_LIFE] = _checked(self.life + 1)
        self._words[_EPOCH.start // 8] = epoch

    def void(self) -> None:
        """No life takes this table over any more."""
        self._words[_LIFE] = 0

    def readable(self, pool_bytes: int) -> bool:
        """Can an engine that was told of a pool of this size use the table?"""
        magic, _, granule, size, *_ = _HEADER.unpack_from(self._memory)
        return bool(magic == _MAGIC and granule == GRANULE and size == pool_bytes)

    def misfit(self, identity: Identity, inode: int) -> str:
        """Why this table cannot be taken over as a whole; empty if it can."""
        magic, version, granule, size, _, boot, sessions, slab, entry, pool = _HEADER.unpack_from(self._memory)
        if magic != _MAGIC or _CRC.unpack_from(self._memory, _HEADER_CRC)[0] != self._header_crc():
            return "torn_header"
        if (version, granule, entry) != (_VERSION, GRANULE, ENTRY_BYTES):
            return "other_layout"
        if size != identity.pool_bytes:
            return "other_size"
        if slab != identity.slab:
            return "other_layout"
        if boot != identity.boot:
            return "reboot"
        if sessions != identity.sessions:
            return "other_sessions_dir"
        if pool != inode:
            return "other_pool"
        if not 0 < self.life < _MAX_LIFE:
            return "torn_header"
        if (
            self.backed > size
            or self.backed % GRANULE
            or any(self._end(first) * GRANULE > self.backed for first, _ in self.slabs())
        ):
            return "torn_directory"
        return ""

    def _header_crc(self) -> int:
        raw = bytes(self._memory[:_HEADER_CRC])
        return zlib.crc32(raw[: _EPOCH.start] + raw[_EPOCH.stop :])

    @property
    def epoch(self) -> int:
        return self._words[_EPOCH.start // 8]

    @property
    def life(self) -> int:
        """How many lives have used the table, this one included; 0 if the number is torn."""
        word = self._words[_LIFE]
        return word & 0xFFFFFFFF if word == _checked(word & 0xFFFFFFFF) else 0

    @property
    def floor(self) -> int:
        """Generations of this life are above it, those of earlier lives below."""
        return self.life << LIFE_SHIFT

    @property
    def backed(self) -> int:
        """Bytes of the pool that have memory."""
        return self._words[_BACKED]

    @backed.setter
    def backed(self, size: int) -> None:
        self._words[_BACKED] = size

    @property
    def readers_until(self) -> float | None:
        """No tier that was told to read this pool does so later (seconds, rounded up to a ms); None: nobody has noted it."""
        word = self._words[_READERS]
        return word / 1e3 if word else None

    @readers_until.setter
    def readers_until(self, at: float) -> None:
        self._words[_READERS] = max(1, math.ceil(at * 1e3))

    # --- entries -----------------------------------------------------------------------------------------------------

    def generation(self, slot: int) -> int:
        """One aligned load."""
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
        self._memory[at + 8 : at + ENTRY_BYTES] = encode(entry)

    def load(self, slot: int) -> SlotEntry | None:
        """Reads an entry back; None if it is torn or makes no sense."""
        at = HEADER_BYTES + ENTRY_BYTES * slot
        return decode(bytes(self._memory[at + 8 : at + ENTRY_BYTES]))

    def age(self, slot: int, age: int) -> None:
        """Where the page in this slot stands in recency, oldest 1: a hint outside of the checksum."""
        _CRC.pack_into(self._memory, HEADER_BYTES + ENTRY_BYTES * slot + 124, min(age, 0xFFFFFFFF))

    # --- slabs -------------------------------------------------------------------------------------------------------

    def cut(self, first: int, size: int) -> None:
        """The slab that begins at granule `first` has slots of `size` granules from now on; 0: it is not cut."""
        self._words[self._slab_word(first)] = size | (size ^ _SLAB_MARK) << 32 if size else 0

    def slabs(self) -> Iterator[tuple[int, int]]:
        """First granule and slot size of every slab that is cut; size 0: the word is torn."""
        slab = self._slab
        for first in range(0, self._granules, slab):
            word = self._words[self._slab_word(first)]
            if word:
                size = word & 0xFFFFFFFF
                fits = word >> 32 == size ^ _SLAB_MARK and first + size <= self._end(first)
                yield first, size if fits else 0

    @property
    def _granules(self) -> int:
        return int(_HEADER.unpack_from(self._memory)[3]) // GRANULE

    @property
    def _slab(self) -> int:
        return int(_HEADER.unpack_from(self._memory)[7])

    def _end(self, first: int) -> int:
        return min(first + self._slab, self._granules)

    def _slab_word(self, first: int) -> int:
        return (HEADER_BYTES + ENTRY_BYTES * self._granules) // 8 + first // self._slab

    def rows(self, first: int, size: int) -> list[Row]:
        """The slots of one slab that are not free. Generations at or above this life's floor make an entry doubtful."""
        found = []
        floor, memory, free, zero = self.floor, self._memory, _FREE, _ZERO
        begin, count = HEADER_BYTES + ENTRY_BYTES * first, (self._end(first) - first) // size
        for at in range(begin, begin + ENTRY_BYTES * size * count, ENTRY_BYTES * size):
            raw = bytes(memory[at : at + ENTRY_BYTES])
            generation = int.from_bytes(raw[:8], "little")
            body = raw[8:124]
            if body in (zero, free) and generation <= floor:
                continue
            entry = decode(raw[8:]) if generation <= floor else None
            if entry is None or entry.state is not SlotState.FREE:
                found.append(Row((at - HEADER_BYTES) // ENTRY_BYTES, generation, entry))
        return found


def _checked(number: int) -> int:
    return number | (~number & 0xFFFFFFFF) << 32
