"""The disk level's files, in a real directory."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import xxhash
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.tier.disk.files import DiskFiles
from pegaflow.services.tier.disk.record import ALIGN, Record
from real_disk import SEGMENT, Disk
from tier_script import key


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    one = Disk(tmp_path / "disk" / "a")
    yield one
    one.close()


def good(disk: Disk, records: list[Record], first_slot: int) -> list[bool]:
    found = disk.files.read(records, [[first_slot + i] for i in range(len(records))])
    return [tuple(one) == record.checksums for one, record in zip(found, records, strict=True)]


def test_pages_come_back_as_they_were_also_in_the_next_life(disk: Disk) -> None:
    records = [disk.put(i, i) for i in range(8)]
    disk.files.write(records, [[i] for i in range(8)], SEGMENT)
    disk.memory[:] = bytes(len(disk.memory))
    assert all(good(disk, records, 20))
    assert (disk.folder.stat().st_mode & 0o777, {path.stat().st_mode & 0o777 for path in disk.folder.iterdir()}) == (
        0o700,
        {0o600},
    )
    files = disk.restart()
    assert files.found == [1] and files.foreign == 0
    assert files.load(1) == (8 * GRANULE, records, 0)
    assert (disk.folder / f"{1:016x}.pages").stat().st_size == 8 * GRANULE, "what was set aside is free again"
    disk.memory[:] = bytes(len(disk.memory))
    assert all(good(disk, records, 30))
    files.drop(1)
    assert [path.name for path in disk.folder.iterdir()] == ["lock"]


@pytest.mark.parametrize("direct", [True, False])
def test_parts_of_one_page_lie_together_whatever_the_file_system_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    if not direct:
        monkeypatch.setattr(DiskFiles, "_takes_direct", lambda self: False)
    disk = Disk(tmp_path)
    lengths = (GRANULE + 1, 100, 3 * GRANULE)
    disk.memory[:] = bytes(range(256)) * (len(disk.memory) // 256)
    for slot in range(64):
        disk.memory[slot * GRANULE] = slot
    slots = [8, 3, 12]  # not in order, not side by side
    sums = tuple(
        xxhash.xxh3_128_digest(disk.memory[slot * GRANULE : slot * GRANULE + length])
        for slot, length in zip(slots, lengths, strict=True)
    )
    records = [Record(key(i), 1, i * 9 * ALIGN * 4, lengths, 16, sums) for i in range(2)]
    disk.files.write(records, [slots, slots], SEGMENT)
    disk.memory[: 40 * GRANULE] = bytes(40 * GRANULE)
    assert disk.files.read(records[1:], [[20, 30, 33]]) == [list(sums)]
    assert disk.memory[20 * GRANULE] == 8 and disk.memory[33 * GRANULE] == 12
    assert disk.restart().load(1) == (records[1].offset + records[1].extent, records, 0)
    disk.close()


def test_bits_and_lengths_of_a_damaged_file_are_seen(disk: Disk) -> None:
    records = [disk.put(i, i) for i in range(4)]
    disk.files.write(records, [[i] for i in range(4)], SEGMENT)
    disk.restart()
    path = disk.folder / f"{1:016x}.pages"
    data = bytearray(path.read_bytes())
    data[GRANULE + 5] ^= 1
    path.write_bytes(data)
    assert disk.files.load(1) is not None
    assert good(disk, records, 20) == [True, False, True, True]
    with path.open("r+b") as file:
        file.truncate(3 * GRANULE + 4096)
    found = disk.files.read(records, [[20 + i] for i in range(4)])
    assert found[3] == "truncated" and tuple(found[2]) == records[2].checksums
    path.unlink()
    assert good(disk, records, 20)[0], "open files live on without a name"
    assert disk.restart().load(1) is None and not list(disk.folder.glob("*.log"))


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(disk: Disk) -> None:
    records = [disk.put(i, i) for i in range(4)]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT // 2, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            disk.files.write(records, [[i] for i in range(4)], SEGMENT)
        assert [path.name for path in disk.folder.iterdir()] == ["lock"]
        disk.files.write([disk.put(0, 0, segment=2)], [[0]], SEGMENT // 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_something_else_under_a_segments_name_is_not_written_and_not_read(disk: Disk) -> None:
    (disk.folder / f"{1:016x}.pages").mkdir()
    with pytest.raises(FileExistsError):
        disk.files.write([disk.put(0, 0)], [[0]], SEGMENT)
    target = disk.folder.parent / "target"
    target.write_bytes(b"precious")
    (disk.folder / f"{2:016x}.pages").symlink_to(target)
    (disk.folder / f"{2:016x}.log").symlink_to(target)
    (disk.folder / "notes.txt").write_text("not ours")
    files = disk.restart()
    assert files.found == [1, 2] and files.foreign == 1
    assert files.load(1) is None and files.load(2) is None
    assert target.read_bytes() == b"precious" and (disk.folder / "notes.txt").exists()


def test_one_tier_per_directory(disk: Disk) -> None:
    with pytest.raises(LocalError) as refused:
        DiskFiles(disk.folder, disk.memory)
    assert refused.value.code == "disk_busy"
    with pytest.raises(LocalError) as refused:
        DiskFiles(disk.folder / "lock", disk.memory)
    assert refused.value.code == "disk_refused"
