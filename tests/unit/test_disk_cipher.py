"""The disk level under a key: pages come back, nothing of them lies in plain, another key costs pages and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.tier.disk.cipher import Cipher, load_cipher
from pegaflow.services.tier.disk.record import ALIGN, aligned
from real_disk import SEGMENT, Disk

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", Cipher(KEY))
    yield made
    made.close()


def test_pages_come_back_as_they_were_also_in_the_next_life(disk: Disk) -> None:
    records = [disk.put(n, slot=n) for n in range(3)]
    disk.files.write(records, [[n] for n in range(3)], SEGMENT)
    for life in range(2):
        disk.memory[:] = bytes(len(disk.memory))
        found = disk.files.read(records, [[10 + n] for n in range(3)])
        assert found == [list(record.checksums) for record in records], life
        for n, record in enumerate(records):
            start, length = (10 + n) * GRANULE, record.lengths[0]
            assert bytes(disk.memory[start : start + length]) == (b"%08d" % n * (GRANULE // 8))[:length]
        files = disk.restart(Cipher(KEY))
        loaded = files.load(1)
        assert loaded is not None and sorted(loaded[1], key=lambda r: r.offset) == records and loaded[2] == 0
    assert disk.files.coding.undeciphered == 0


def test_parts_of_one_page_have_tags_of_their_own(disk: Disk) -> None:
    record = disk.put(0, slot=0)
    lengths = (GRANULE - 100, GRANULE, 5)
    sums = tuple(disk.sum(slot, length) for slot, length in zip((4, 9, 2), lengths, strict=True))
    record = type(record)(record.key, 1, 0, lengths, 16, sums)
    disk.files.write([record], [[4, 9, 2]], SEGMENT)
    assert disk.restart(Cipher(KEY)).load(1) is not None
    assert disk.files.read([record], [[5, 10, 3]]) == [list(sums)]


def test_neither_bytes_nor_keys_nor_checksums_lie_there_in_plain(disk: Disk) -> None:
    record = disk.put(7, slot=7)
    disk.files.write([record], [[7]], SEGMENT)
    everything = b"".join(path.read_bytes() for path in disk.folder.iterdir())
    assert b"00000007" not in everything
    assert record.key not in everything and record.key[16:] not in everything
    assert record.checksums[0] not in everything


def test_no_two_places_and_no_two_segments_share_their_key_stream(disk: Disk) -> None:
    """The same page twice, and again in a segment of the same number: four times other bytes. Equal ones would give all away."""
    seen = []
    for _ in range(2):
        records = [disk.put(n, slot=n) for n in range(2)]
        disk.memory[GRANULE : 2 * GRANULE] = disk.memory[:GRANULE]
        disk.files.write(records, [[0], [1]], SEGMENT)
        data = (disk.folder / f"{1:016x}.pages").read_bytes()
        seen += [data[record.offset : record.offset + record.lengths[0]] for record in records]
        disk.files.drop(1)  # the next life may begin its numbers anew
        disk.restart(Cipher(KEY))
    assert len(set(seen)) == 4


@pytest.mark.parametrize("key", [OTHER, None], ids=["another key", "no key"])
def test_another_key_costs_the_pages_and_nothing_else(disk: Disk, key: bytes | None) -> None:
    records = [disk.put(n, slot=n) for n in range(3)]
    disk.files.write(records, [[n] for n in range(3)], SEGMENT)
    files = disk.restart(Cipher(key) if key else None)
    assert files.load(1) is None and files.coding.undeciphered == 3
    assert not list(disk.folder.glob("*.pages")), "its room is free again"
    again = disk.put(5, slot=5, segment=2)
    files.write([again], [[5]], SEGMENT)
    assert files.read([again], [[6]]) == [list(again.checksums)]


def test_what_lies_there_in_plain_is_not_taken_over_once_there_is_a_key(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    disk.files.write([disk.put(0, slot=0)], [[0]], SEGMENT)
    assert disk.restart(Cipher(KEY)).load(1) is None and disk.files.coding.undeciphered == 1
    disk.close()


def test_a_changed_byte_and_a_page_in_anothers_place_are_seen(disk: Disk) -> None:
    records = [disk.put(n, slot=n) for n in range(3)]
    disk.files.write(records, [[n] for n in range(3)], SEGMENT)
    pages = disk.folder / f"{1:016x}.pages"
    data = bytearray(pages.read_bytes())
    data[records[0].offset + 5000] ^= 1
    first, second = records[1].offset, records[2].offset
    data[first : first + GRANULE], data[second : second + GRANULE] = (
        data[second : second + GRANULE],
        data[first : first + GRANULE],
    )
    pages.write_bytes(data)
    assert disk.files.read(records, [[20], [21], [22]]) == ["bad_checksum"] * 3


def test_a_damaged_log_costs_its_records_only(disk: Disk) -> None:
    records = [disk.put(n, slot=n) for n in range(3)]
    disk.files.write(records, [[n] for n in range(3)], SEGMENT)
    log = disk.folder / f"{1:016x}.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-3])
    loaded = disk.restart(Cipher(KEY)).load(1)
    assert loaded is not None and loaded[1] == records[:2] and loaded[2] > 0


def test_the_key_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for text, mode, code in (
        ("00" * 32, 0o640, "unsafe_path"),
        ("00" * 32, 0o604, "unsafe_path"),
        ("00" * 31, 0o600, "bad_config"),
        ("zz" * 32, 0o600, "bad_config"),
        ("", 0o600, "bad_config"),
    ):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(LocalError) as refused:
            load_cipher(str(path))
        assert refused.value.code == code
    path.write_text(os.urandom(32).hex() + "\n")
    path.chmod(0o600)
    assert load_cipher(str(path)) is not None
    with pytest.raises(LocalError):
        load_cipher(str(tmp_path / "missing"))
    assert load_cipher("") is None
    assert aligned(1) == ALIGN
