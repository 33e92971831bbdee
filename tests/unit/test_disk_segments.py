"""Segments: what an earlier life has left, how large they are, and their logs."""

from __future__ import annotations

import itertools

from disk_script import DiskScript
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.catalogue import DISK, SEALED
from pegaflow.services.tier import events
from pegaflow.services.tier.disk.index import DiskIndex, segment_bytes
from pegaflow.services.tier.disk.record import ALIGN, Record, decode_log, encode, encode_header
from tier_script import checksum, key


def record(number: int, segment: int, place: int) -> Record:
    return Record(key(number), segment, place * GRANULE, (GRANULE,), 16, (checksum(f"page {number}"),))


def test_segments_of_an_earlier_life_are_served_and_only_then_is_anything_written() -> None:
    script = DiskScript(floor=7)
    for number in range(14):
        script.save([number], request=f"r{number}")
    script.tick()
    assert not script.pending and script.tier.counts["disk_not_stored"] == 0
    script.feed(events.SegmentFound(5, 2 * GRANULE, [record(100, 5, 0), record(101, 5, 1)]))
    script.feed(events.SegmentFound(7, 2 * GRANULE, [record(101, 7, 0), record(102, 7, 1)]))
    script.feed(events.SegmentFound(6, GRANULE, [record(102, 6, 0)]))
    script.feed(events.SegmentsEnded())
    assert script.tier.disk.index.records[key(101)].segment == 7 == script.tier.disk.index.records[key(102)].segment
    assert script.heard[key(100)] == (SEALED, DISK)
    assert script.settle() > 0
    assert script.lookup([100, 101, 102]) is None
    script.settle()
    assert {100, 101, 102} <= script.sealed()
    assert min(script.tier.disk.index.segments) == 5 and max(script.tier.disk.index.segments) == 8


def test_what_an_earlier_life_left_beyond_the_size_goes_oldest_first() -> None:
    index = DiskIndex(16 * GRANULE, 9)
    for number in (9, 3, 5, 7):
        index.adopt(number, 6 * GRANULE, [record(number * 10 + i, number, i) for i in range(6)])
        index.validate()
    assert sorted(index.segments) == [7, 9] and sorted(index.dropped) == [3, 5]


def test_segments_are_a_64th_of_the_disk_but_neither_tiny_nor_more_than_a_quarter() -> None:
    assert segment_bytes(1 << 40) == 16 << 30
    assert segment_bytes(1 << 30) == 64 << 20
    assert segment_bytes(16 << 20) == 4 << 20
    assert segment_bytes(16_777_217) % ALIGN == 0


def test_a_log_torn_at_any_byte_loses_only_its_end() -> None:
    records = [Record(key(i), 3, i * 2 * GRANULE, (GRANULE, 100), 16, (checksum(f"{i}a"), checksum(f"{i}b"))) for i in range(3)]
    parts = [encode_header(3), *map(encode, records)]
    whole = b"".join(parts)
    ends = list(itertools.accumulate(map(len, parts)))
    for cut in range(len(whole) + 1):
        found = decode_log(whole[:cut], 3, 1 << 20)
        if cut < ends[0]:
            assert found is None
        else:
            count = sum(end <= cut for end in ends) - 1
            assert found == (records[:count], cut - ends[count])
    for at in range(ends[0], len(whole)):
        broken = bytearray(whole)
        broken[at] ^= 1
        found = decode_log(bytes(broken), 3, 1 << 20)
        assert found is not None and found[0] == records[: sum(end <= at for end in ends) - 1]
    assert decode_log(whole, 4, 1 << 20) is None, "another segment's"
    assert decode_log(whole, 3, GRANULE) == ([], 0), "places behind the end of the pages"
