"""Pages that lie side by side on disk are read in one request, and each still stands or falls alone."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.disk.files import DiskFiles
from pegaflow.services.tier.disk.record import Record

PAGES = 6
SEGMENT = 1 << 20


@pytest.fixture
def memory() -> Iterator[memoryview]:
    mapping = mmap.mmap(-1, 4 * PAGES * GRANULE)
    view = memoryview(mapping)
    yield view
    view.release()
    mapping.close()


@pytest.fixture
def files(tmp_path: Path, memory: memoryview) -> Iterator[DiskFiles]:
    files = DiskFiles(tmp_path / "disk", memory)
    yield files
    files.close()


def stored(files: DiskFiles, memory: memoryview) -> list[Record]:
    """Pages of a chain, written from its end: page i of the list lies behind page i + 1."""
    for slot in range(PAGES):
        memory[slot * GRANULE : (slot + 1) * GRANULE] = os.urandom(GRANULE)
    records = [Record(b"k%d" % i, 1, (PAGES - 1 - i) * GRANULE, (GRANULE,), 16, (digest(memory, i),)) for i in range(PAGES)]
    files.write(records[::-1], [[slot] for slot in reversed(range(PAGES))], SEGMENT)
    return records


def digest(memory: memoryview, slot: int) -> bytes:
    return xxhash.xxh3_128_digest(memory[slot * GRANULE : (slot + 1) * GRANULE])


def requests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request to the disk."""
    seen: list[int] = []
    preadv = os.preadv

    def counted(fd: int, views: Any, offset: int) -> int:
        seen.append(sum(map(len, views)))
        return preadv(fd, views, offset)

    monkeypatch.setattr(os, "preadv", counted)
    return seen


def test_a_chain_comes_in_one_request(files: DiskFiles, memory: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    records = stored(files, memory)
    seen = requests(monkeypatch)
    slots = [[2 * PAGES + i] for i in range(PAGES)]
    assert files.read(records, slots) == [list(record.checksums) for record in records]
    assert [digest(memory, slot) for (slot,) in slots] == [record.checksums[0] for record in records]
    assert seen == [PAGES * GRANULE]


def test_a_hole_ends_a_run(files: DiskFiles, memory: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    records = stored(files, memory)
    seen = requests(monkeypatch)
    wanted = [records[0], records[1], records[4]]
    assert files.read(wanted, [[12], [20], [15]]) == [list(record.checksums) for record in wanted]
    assert sorted(seen) == [GRANULE, 2 * GRANULE]


def test_a_run_that_is_cut_short_costs_only_the_pages_behind_the_cut(
    files: DiskFiles, memory: memoryview, tmp_path: Path
) -> None:
    records = stored(files, memory)
    (pages,) = (tmp_path / "disk").glob("*.pages")
    os.truncate(pages, 4 * GRANULE)  # pages 0 and 1 of the chain lie behind it
    found = files.read(records, [[2 * PAGES + i] for i in range(PAGES)])
    assert found == ["truncated", "truncated", *(list(record.checksums) for record in records[2:])]


def test_a_run_that_fails_is_read_page_by_page(files: DiskFiles, memory: memoryview, monkeypatch: pytest.MonkeyPatch) -> None:
    records = stored(files, memory)
    preadv = os.preadv
    bad = records[3].offset

    def broken(fd: int, views: Any, offset: int) -> int:
        if offset <= bad < offset + sum(map(len, views)):
            raise OSError(5, "a bad block")
        return preadv(fd, views, offset)

    monkeypatch.setattr(os, "preadv", broken)
    found = files.read(records, [[2 * PAGES + i] for i in range(PAGES)])
    assert found == [list(record.checksums) if i != 3 else "io_error" for i, record in enumerate(records)]
