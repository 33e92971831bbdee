"""The slot table: what is read back is what was stored, or nothing; which tables are another life's to take over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pegaflow.common.pool import Pool
from pegaflow.common.slot_table import (
    GRANULE,
    HEADER_BYTES,
    LIFE_SHIFT,
    Identity,
    SlotEntry,
    SlotState,
    SlotTable,
    decode,
    encode,
)
from pegaflow.common.wire.columns import MAX_KEY_BYTES, pack_keys, unpack_keys
from pegaflow.common.wire.errors import LocalError

IDENTITY = Identity(40 * GRANULE, 8, b"boot" * 4, b"dirs" * 4)
ENTRY = SlotEntry(SlotState.SEALED, b"k" * 48, 1, 2, 16, 3 * GRANULE, 7, 1 << 60, b"c" * 16, 1 << 41, 3)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool.open(tmp_path, IDENTITY, 1)
    made.allocate()
    yield made
    made.close(keep=False)


def reopened(pool: Pool, identity: Identity = IDENTITY, epoch: int = 2) -> Pool:
    """The next life; the fixture's pool is closed with it."""
    directory = pool.directory
    pool.close(keep=True)
    pool.__dict__ = Pool.open(directory, identity, epoch).__dict__
    return pool


def test_an_entry_is_read_back_whole() -> None:
    assert decode(encode(ENTRY)) == ENTRY
    assert decode(bytes(120)) == SlotEntry(SlotState.FREE) == decode(encode(SlotEntry(SlotState.FREE)))


@pytest.mark.parametrize("width", [1, 48, MAX_KEY_BYTES])
def test_every_key_that_the_wire_takes_has_room(width: int) -> None:
    [key] = unpack_keys(pack_keys([b"\xff" * width]))
    assert decode(encode(ENTRY._replace(key=key))) == ENTRY._replace(key=key)


def test_a_torn_entry_is_never_read_as_something_else() -> None:
    other = encode(ENTRY._replace(state=SlotState.GRANTED, key=b"o" * 48, holder=5, age=0))
    whole = encode(ENTRY)
    for cut in range(1, 116):
        assert decode(other[:cut] + whole[cut:]) in (None, decode(whole), decode(other)), cut
    for at in range(116):
        assert decode(whole[:at] + bytes((whole[at] ^ 4,)) + whole[at + 1 :]) is None, at


def test_a_life_takes_over_what_the_one_before_left(pool: Pool) -> None:
    pool.table.cut(8, 3)
    pool.table.raise_generation(8, pool.table.floor + 5)
    pool.table.store(8, ENTRY)
    pool.table.age(8, 9)
    path, floor = pool.path, pool.table.floor
    again = reopened(pool)
    assert (again.adopted, again.path, again.allocated, again.refused) == (True, path, IDENTITY.pool_bytes, {})
    assert again.slabs() == [(8, 3)]
    [row] = again.rows(8, 3)
    assert (row.slot, row.generation, row.entry) == (8, floor + 5, ENTRY._replace(age=9))
    assert (again.table.life, again.table.epoch) == (2, 2)
    assert again.table.floor == floor + (1 << LIFE_SHIFT)


def test_how_long_readers_may_read_outlives_the_life_that_told_them(pool: Pool) -> None:
    assert pool.table.readers_until == 0.001, "nobody was told"
    pool.table.readers_until = 12.3451
    assert reopened(pool).table.readers_until == 12.346
    pool.table._words[HEADER_BYTES // 8 - 3] = 0  # as lives left it that noted nothing
    assert reopened(pool, epoch=3).table.readers_until is None


def test_free_slots_are_no_rows_and_doubtful_generations_make_an_entry_doubtful(pool: Pool) -> None:
    pool.table.store(0, SlotEntry(SlotState.FREE))
    pool.table.raise_generation(1, (1 << 62) + 1)
    pool.table.store(2, ENTRY)
    pool.table.raise_generation(2, 1 << 62)
    assert [(row.slot, row.entry) for row in pool.rows(0, 1)] == [(1, None), (2, None)]


def test_a_generation_never_goes_back(pool: Pool) -> None:
    pool.table.raise_generation(3, 7)
    for lower in (7, 6):
        with pytest.raises(ValueError, match="not above"):
            pool.table.raise_generation(3, lower)


def test_a_torn_cut_is_doubtful(pool: Pool) -> None:
    pool.table.cut(8, 3)
    pool.table._words[pool.table._slab_word(8)] ^= 1 << 40
    assert pool.slabs() == [(8, 0)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pool_bytes": 48 * GRANULE}, "other_size"),
        ({"slab": 4}, "other_size"),  # another directory behind the entries
        ({"boot": b"x" * 16}, "reboot"),
        ({"sessions": b"x" * 16}, "other_sessions_dir"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_another_configuration_or_machine_life_starts_empty(pool: Pool, change: dict[str, object], reason: str) -> None:
    old = pool.path
    again = reopened(pool, IDENTITY._replace(**change))  # type: ignore[arg-type]
    assert (again.adopted, again.table.life, list(again.refused.values())) == (False, 1, [reason])
    assert again.path != old and not old.exists()


def _word(at: int) -> Callable[[SlotTable], None]:
    def spoil(table: SlotTable) -> None:
        table._memory[at : at + 1] = bytes((table._memory[at] ^ 1,))

    return spoil


def _backed(table: SlotTable) -> None:
    table.backed = GRANULE


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_word(0), "torn_header"),
        (_word(8), "torn_header"),
        (_word(40), "torn_header"),
        (_word(82), "torn_header"),
        (_word(4080), "torn_header"),
        (SlotTable.void, "torn_header"),
        (_backed, "torn_directory"),
    ],
    ids=["magic", "version", "boot", "checksum", "life", "void", "backed"],
)
def test_a_header_that_does_not_hold_is_refused(pool: Pool, spoil: Callable[[SlotTable], None], reason: str) -> None:
    pool.table.cut(8, 3)
    spoil(pool.table)
    again = reopened(pool)
    assert (again.adopted, list(again.refused.values())) == (False, [reason])


def test_memory_that_is_not_there_is_not_believed(pool: Pool) -> None:
    size = pool.path.stat().st_size
    path, inode = pool.path, pool.path.stat().st_ino
    os.truncate(path, 0)
    os.truncate(path, size)
    assert path.stat().st_ino == inode
    assert list(reopened(pool).refused.values()) == ["not_backed"]


def test_a_second_tier_meets_the_lock_whatever_became_of_the_files(pool: Pool) -> None:
    pool.table_path.unlink()
    with pytest.raises(LocalError, match="another tier"):
        Pool.open(pool.directory, IDENTITY, 2)


def test_without_warm_restart_the_files_go(tmp_path: Path) -> None:
    pool = Pool.open(tmp_path, IDENTITY, 1)
    pool.close(keep=True)
    again = Pool.open(tmp_path, IDENTITY, 2, warm=False)
    assert not again.adopted and len(list(tmp_path.glob("pool-*"))) == 1
    again.close(keep=False)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
