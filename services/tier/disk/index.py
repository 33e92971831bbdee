"""What is on disk, pure: segments, filled one after the other; the oldest goes as a whole when there is no room.

    segment │ page page page … ▶ open       a page's place is never used again while its segment lives
    segment │ page page …                   closed: only read
    segment │ page …          ◀ oldest      goes next, with all its pages, unless a job is at work in it or a page is kept

First in, first out by segments writes large pieces, needs no cleaning, and leaves no holes whatever the page sizes. What is used
often is in memory; it is written again when it is evicted after its segment has gone. Children are evicted, so written, before
their parents, so they go first here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pegaflow.services.tier.disk.record import ALIGN, Record, aligned

SEGMENTS = 64
MIN_SEGMENTS = 4
MIN_BYTES = 64 << 20
MAX_SEGMENTS = 1024
"""Those that earlier lives have left half full included: each is two files and one open descriptor."""


def segment_bytes(capacity: int) -> int:
    """Bytes of one segment on a disk level of `capacity` bytes."""
    return min(max(capacity // SEGMENTS, MIN_BYTES), capacity // MIN_SEGMENTS) // ALIGN * ALIGN


@dataclass(slots=True, eq=False)
class Segment:
    """`jobs`: reads and writes under way in it."""

    number: int
    size: int
    used: int = 0
    jobs: int = 0
    keys: set[bytes] = field(default_factory=set)


class DiskIndex:
    """Owns the numbers, not the files. `gone` collects keys that left with their segments, `dropped` these segments.

    Segments of earlier lives have numbers up to `floor`. `spared()`: segments that must not go to make room; the owner sets it.
    """

    def __init__(self, capacity: int, floor: int = 0) -> None:
        self.capacity, self.segment = capacity, segment_bytes(capacity)
        self.records: dict[bytes, Record] = {}
        self.segments: dict[int, Segment] = {}  # oldest first
        self.gone: deque[bytes] = deque()
        self.dropped: list[int] = []
        self.moves = 0
        """How often a key that had a place has got another one."""
        self.taken = 0
        """Bytes of all segments, filled or not."""
        self.spared: Callable[[], Collection[int]] = tuple
        self._open: Segment | None = None
        self._next = floor + 1

    # --- places ------------------------------------------------------------------------------------------------------

    def place(self, lengths: Sequence[int]) -> tuple[int, int] | None:
        """Segment and offset for a page, with a job's hold on the segment; None: too large, or no segment may go."""
        need = sum(map(aligned, lengths))
        if need > self.segment:
            return None
        if self._open is None or self._open.used + need > self._open.size:
            self._open = None
            if not self._make_room():
                return None
            self._open = self.segments[self._next] = Segment(self._next, self.segment)
            self.taken += self.segment
            self._next += 1
        segment = self._open
        offset = segment.used
        segment.used += need
        segment.jobs += 1
        return segment.number, offset

    def _make_room(self) -> bool:
        while self.taken + self.segment > self.capacity or len(self.segments) >= MAX_SEGMENTS:
            if not self._drop_oldest():
                return False
        return True

    def _drop_oldest(self) -> bool:
        """False: every segment is open, at work or spared."""
        spared = self.spared()
        for segment in self.segments.values():
            if not segment.jobs and segment is not self._open and segment.number not in spared:
                self.drop(segment.number)
                return True
        return False

    def close(self, number: int) -> None:
        """A write into it has failed: no more of them."""
        if self._open is not None and self._open.number == number:
            self._open = None

    def drop(self, number: int) -> None:
        """The segment goes with all its pages; no job is at work in it."""
        segment = self.segments.pop(number)
        assert not segment.jobs
        if segment is self._open:
            self._open = None
        for key in segment.keys:
            del self.records[key]
        self.gone.extend(segment.keys)
        self.taken -= segment.size
        self.dropped.append(number)

    def hold(self, number: int) -> None:
        """A job is at work in the segment."""
        self.segments[number].jobs += 1

    def let_go(self, number: int) -> None:
        self.segments[number].jobs -= 1

    # --- pages -------------------------------------------------------------------------------------------------------

    def add(self, record: Record) -> None:
        """The page's bytes and its record are on disk. An older place of the same key is forgotten."""
        old = self.records.get(record.key)
        if old is not None:
            self.segments[old.segment].keys.discard(record.key)
            self.moves += 1
        self.records[record.key] = record
        self.segments[record.segment].keys.add(record.key)

    def remove(self, record: Record) -> bool:
        """The page cannot be read, or has other bytes. False: it has another place by now, or none."""
        if self.records.get(record.key) is not record:
            return False
        del self.records[record.key]
        self.segments[record.segment].keys.discard(record.key)
        return True

    def adopt(self, number: int, size: int, records: Iterable[Record], begins: bool = True) -> list[Record]:
        """A segment of an earlier life, told in any order and never filled any further. Returns the records that are used.

        What this life has written of the same keys, or a younger segment has, is kept. Not `begins`: more of its records.
        """
        used = []
        if begins:
            self.segments[number] = Segment(number, size, size)
            self.taken += size
            self.segments = dict(sorted(self.segments.items()))
        segment = self.segments.get(number)
        if segment is None:
            return []  # it has gone already, to make room for a younger one
        for record in records:
            old = self.records.get(record.key)
            if old is None or old.segment <= number:
                self.add(record)
                used.append(record)
        while (self.taken > self.capacity or len(self.segments) > MAX_SEGMENTS) and not segment.jobs:
            if not self._drop_oldest():
                break
        return [record for record in used if self.records.get(record.key) is record]

    def validate(self) -> None:
        assert self.taken == sum(segment.size for segment in self.segments.values())
        assert list(self.segments) == sorted(self.segments)
        assert sum(len(segment.keys) for segment in self.segments.values()) == len(self.records)
        for number, segment in self.segments.items():
            assert segment.number == number < self._next and segment.jobs >= 0 and segment.used <= segment.size
            end = 0
            for record in sorted((self.records[key] for key in segment.keys), key=lambda one: one.offset):
                assert record.segment == number and record.offset >= end, "two pages in one place"
                end = record.offset + record.extent
            assert end <= segment.size
