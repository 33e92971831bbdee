"""The disk level, pure and as a script of the whole tier: events in, commands out; and its files in a real directory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.common.wire.messages import loads
from pegaflow.common.wire.messages.catalogue import DISK, GONE, MEMORY, NO_OWNER, SEALED, Delta, Located, Sync, SyncChunk
from pegaflow.common.wire.messages.loads import Hits, Release
from pegaflow.common.wire.messages.saves import GRANTED
from pegaflow.common.wire.messages.space import Probe, Probed
from pegaflow.common.wire.messages.transfer import Pin, Pinned
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.disk.files import DiskFiles
from pegaflow.services.tier.disk.index import DiskIndex, segment_bytes
from pegaflow.services.tier.disk.level import HANG_S, PAUSE_S, READ_DEADLINE_S, DiskOptions
from pegaflow.services.tier.disk.record import ALIGN, Record, decode_log, encode, encode_header
from pegaflow.services.tier.disk.threads import DiskThreads
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.exposition import TierCollector
from pegaflow.services.tier.pins import VERIFY_S, Agent
from pegaflow.services.tier.state import Place, TierState
from prometheus_client import CollectorRegistry
from test_tier_state import EPOCH, Script, checksum, key

CAPACITY = 64 * GRANULE


class DiskScript(Script):
    """A tier of 16 one-granule pages with a disk; what leaves memory does so at ticks, above 12 pages, down to 8."""

    def __init__(self, capacity: int = CAPACITY, queue: int = 1 << 20, floor: int = 0, metaserver: bool = False) -> None:
        self.heard: dict[bytes, tuple[int, int]] = {}
        self.pending: list[Any] = []
        self.asked: list[commands.Command] = []
        super().__init__(16, metaserver=metaserver)
        numbers = itertools.count(1)
        self.tier = TierState(
            Place("a", EPOCH, "pool", 16 * GRANULE, "table", "i", "e", "c"),
            lambda n: next(numbers).to_bytes(n, "little"),
            session_topic,
            metaserver=metaserver,
            space=SpaceOptions("lru", {}, 1.0, 0.75, 0.5, 0.25),
            disk=DiskOptions(capacity, queue, floor),
        )
        self.tier.agent = Agent("a/77", b"blob", 4096)
        self.feed(events.Backed(16))
        self.engine()

    def feed(self, event: events.Event) -> list[commands.Command]:
        out = super().feed(event)
        self.asked += out
        self.pending += [one for one in out if isinstance(one, commands.DiskWrite | commands.DiskRead)]
        for one in out:
            if isinstance(one, commands.Publish) and isinstance(one.message, Delta):
                delta = one.message
                for name, state, level in zip(delta.keys, delta.states, delta.levels, strict=True):
                    self.heard[name] = (state, level)
        return out

    def tick(self, seconds: float = 0.02) -> list[commands.Command]:
        self.now += seconds
        return self.feed(events.Tick())

    def settle(self, code: str = "") -> int:
        """Lets the disk do what it was asked for, until nothing more comes; returns how many pages it wrote."""
        wrote = 0
        self.tick()
        while self.pending:
            job = self.pending.pop(0)
            if isinstance(job, commands.DiskWrite):
                wrote += len(job.records)
                self.feed(events.DiskWritten(job.job, code))
            else:
                self.feed(events.DiskReadEnded(job.job, code or [record.checksums for record in job.records]))
            self.tick()
        return wrote

    def fill(self, numbers: range) -> None:
        """Saves pages, each of its own request, and lets those that leave go to disk."""
        for number in numbers:
            self.save([number], request=f"r{number}")
            self.settle()

    def release(self, answer: Hits) -> None:
        session = self.members["p", "scheduler", 0]
        self.ask(Release(session.session, session.token, u32s([answer.lease])))

    def on_disk(self) -> set[int]:
        return {int.from_bytes(name[16:20], "big") for name in self.tier.disk.index.records}

    def quiet(self) -> bool:
        """Nothing is held by anybody."""
        dump = self.tier.dump()
        return dump["references"] == 0 and dump["disk"]["reading"] == dump["disk"]["writing"] == 0 and not dump["aside"]


def answers(out: list[commands.Command], kind: type[Any]) -> list[Any]:
    return [one.message for one in out if isinstance(one, commands.Reply) and isinstance(one.message, kind)]


# --- out of memory ----------------------------------------------------------------------------------------------------


def test_what_leaves_memory_ahead_of_need_is_on_disk_and_in_the_catalogue() -> None:
    script = DiskScript()
    script.fill(range(30))
    assert script.on_disk() | script.sealed() == set(range(30))
    assert len(script.sealed()) <= 12 and not script.on_disk() & script.sealed()
    assert script.tier.counts["disk_not_stored"] == 0
    for number in range(30):
        level = DISK if number in script.on_disk() else MEMORY
        assert script.heard[key(number)] == (SEALED, level), "never `gone` in between"
    chunk = script.ask(Sync(1, 1, 0))
    assert isinstance(chunk, SyncChunk)
    assert dict(zip(chunk.keys, chunk.levels, strict=True)) == {
        key(number): DISK if number in script.on_disk() else MEMORY for number in range(30)
    }
    assert script.quiet()


def test_a_page_that_is_being_written_can_still_be_read_and_stays_if_it_is() -> None:
    script = DiskScript()
    for number in range(13):
        script.save([number], request=f"r{number}")
    script.tick()
    write = script.pending[0]
    number = int.from_bytes(write.records[0].key[16:20], "big")
    answer = script.lookup([number])
    assert isinstance(answer, Hits) and answer.full == 1 and bytes(answer.sources) == bytes([loads.LOCAL])
    script.settle()
    assert number in script.sealed() and number in script.on_disk()
    assert script.heard[key(number)] == (SEALED, MEMORY)
    script.release(answer)
    assert script.quiet()


def test_what_a_grant_needs_at_once_is_evicted_and_not_stored() -> None:
    script = DiskScript()
    for number in range(20):
        assert bytes(script.save([number], request=f"r{number}").statuses) == bytes([GRANTED])  # no tick in between
    assert script.tier.counts["disk_not_stored"] == 4 and not script.pending
    assert script.heard[key(0)] == (GONE, MEMORY)


def test_a_full_queue_makes_trimming_wait_and_grants_evict() -> None:
    script = DiskScript(queue=2 * GRANULE)
    for number in range(14):
        script.save([number], request=f"r{number}")
    script.tick()
    script.tick()
    assert script.tier.disk.writing_bytes == 2 * GRANULE and script.tier.counts["disk_not_stored"] == 0
    for number in range(14, 20):
        script.save([number], request=f"r{number}")
    assert script.tier.counts["disk_not_stored"] == 4, "the disk is slow: nobody waits for it"
    script.settle()
    assert script.tier.counts["disk_not_stored"] == 4 and len(script.sealed()) <= 12
    assert script.quiet()


def test_a_failed_write_costs_its_pages_only_and_is_not_repeated_at_once() -> None:
    script = DiskScript()
    script.fill(range(14))
    before = script.on_disk()
    for number in range(14, 20):
        script.save([number], request=f"r{number}")
    script.settle("disk_full")
    counts = script.tier.counts
    assert script.on_disk() == before and counts["disk_write_failed"] >= 4 and counts["disk_failed_disk_full"] == 1
    assert counts["disk_not_stored"] == counts["disk_write_failed"] and len(script.sealed()) <= 12
    script.fill(range(20, 26))
    assert script.on_disk() == before and counts["disk_failed_disk_full"] == 1, "it is left in peace for a while"
    script.tick(PAUSE_S)
    script.fill(range(26, 40))
    assert script.on_disk() > before
    assert script.quiet()


def test_a_disk_that_fails_for_long_costs_no_older_page_its_room() -> None:
    script = DiskScript(capacity=32 * GRANULE)
    script.fill(range(24))
    before, taken = script.on_disk(), script.tier.disk.index.taken
    for number in range(24, 60):
        script.save([number], request=f"r{number}")
        script.settle("io_error")
        script.tick(PAUSE_S)
    index = script.tier.disk.index
    assert script.on_disk() == before and index.taken <= taken + index.segment
    assert script.tier.counts["disk_evicted"] == 0 and script.tier.counts["disk_failed_io_error"] > 5


def test_the_disk_drops_its_oldest_segment_and_says_so() -> None:
    script = DiskScript(capacity=16 * GRANULE)
    script.fill(range(60))
    index = script.tier.disk.index
    assert index.taken <= 16 * GRANULE and script.tier.counts["disk_evicted"] > 0
    gone = set(range(60)) - script.on_disk() - script.sealed()
    assert gone == set(range(len(gone))), "first in, first out"
    assert all(script.heard[key(number)] == (GONE, MEMORY) for number in gone)


# --- back into memory -------------------------------------------------------------------------------------------------


def test_a_lookup_reads_what_is_on_disk_and_does_not_hold_others_up() -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:3]
    assert script.lookup(there) is None
    asked = script.looked
    read = script.pending.pop()
    assert isinstance(read, commands.DiskRead) and [record.key for record in read.records] == [key(n) for n in there]
    assert [script.heard[key(n)] for n in there] == [(SEALED, DISK)] * 3
    quick = script.lookup(sorted(script.sealed())[:1])
    assert isinstance(quick, Hits) and quick.full == 1
    (answer,) = answers(script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records])), Hits)
    assert answer.lookup == asked.lookup and answer.full == 3 and bytes(answer.sources) == bytes([loads.DISK]) * 3
    assert script.on_disk() >= set(there) and [script.heard[key(n)] for n in there] == [(SEALED, MEMORY)] * 3
    script.release(answer)
    script.release(quick)
    written = script.tier.counts["disk_written"]
    script.fill(range(20, 40))
    assert not set(there) & script.sealed() and set(there) <= script.on_disk(), "read, evicted again, still there"
    assert script.tier.counts["disk_written"] - written == len(script.on_disk()) - written, "and not written again"
    assert script.quiet()


@pytest.mark.parametrize("result", ["truncated", "io_error", "bits", None])
def test_a_page_that_cannot_be_read_is_off_the_disk_and_harms_no_other(result: str | None) -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:3]
    script.lookup(there)
    read = script.pending.pop()
    found: Any = [one.checksums for one in read.records]
    found[1] = (checksum("other bytes"),) if result == "bits" else result
    (answer,) = answers(script.feed(events.DiskReadEnded(read.job, found if result else None)), Hits)
    assert answer.full == (1 if result else 0) and answer.reason == ErrorCode.UNKNOWN
    lost = {there[1]} if result else set(there)
    assert not lost & script.on_disk() and set(there) - lost <= script.on_disk()
    assert all(script.heard[key(n)] == (GONE, MEMORY) for n in lost)
    counts = script.tier.counts
    code = {"bits": ErrorCode.BAD_CHECKSUM, None: ErrorCode.INTERNAL}.get(result, result)
    assert counts[f"disk_failed_{code}"] == len(lost)
    assert counts["disk_bad_checksum"] + counts["disk_read_failed"] == len(lost)
    if answer.lease:
        script.release(answer)
    assert script.quiet()


def test_a_read_that_hangs_is_given_up_and_its_slots_stay_out_of_use() -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:2]
    assert script.lookup(there, wait_ms=60_000) is None
    read = script.pending.pop()
    free = script.tier.pages.allocator.free_granules()
    out = script.tick(READ_DEADLINE_S)
    assert [one.job for one in out if isinstance(one, commands.DiskGiveUp)] == [read.job]
    (answer,) = answers(out, Hits)
    assert answer.full == 0 and script.tier.pages.allocator.free_granules() == free
    assert script.ask(Probe([key(there[0])])).states == bytes([0]), "a disk that hangs is not asked for more"
    script.fill(range(20, 26))
    assert not script.pending
    script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    assert script.quiet() and set(there) <= script.on_disk() and not set(there) & script.sealed()
    assert script.lookup(there) is None and script.settle() == 0, "it answers again"
    assert set(there) <= script.sealed()


def test_reads_wait_for_room_among_the_reads() -> None:
    script = DiskScript(queue=2 * GRANULE)
    script.fill(range(24))
    there = sorted(script.on_disk())[:6]
    assert script.lookup(there) is None
    assert script.tier.disk.reading_bytes == 2 * GRANULE
    out: list[commands.Command] = []
    while script.pending:
        read = script.pending.pop(0)
        out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    (answer,) = answers(out, Hits)
    assert answer.full == 6
    script.release(answer)
    assert script.quiet()


def test_a_prefix_longer_than_memory_is_cut_to_what_fits() -> None:
    script = DiskScript()
    script.fill(range(50))
    there = sorted(script.on_disk())[:24]
    assert script.lookup(there) is None
    out: list[commands.Command] = []
    while script.pending:
        read = script.pending.pop(0)
        out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    (answer,) = answers(out, Hits)
    assert answer.full == 16 and answer.reason == ErrorCode.NO_SPACE
    script.release(answer)
    assert script.quiet()


def test_two_lookups_that_want_more_than_memory_holds_do_not_take_pages_from_each_other_for_ever() -> None:
    script = DiskScript(queue=3 * GRANULE)
    script.fill(range(50))
    there = sorted(script.on_disk())
    first, second = there[:12], there[12:24]
    script.lookup(first)
    script.lookup(second)
    out: list[commands.Command] = []
    for _ in range(60):
        if script.pending:
            read = script.pending.pop()  # not in their order
            out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    found = answers(out, Hits)
    assert not script.pending and len(found) == 2, "both have an answer, and time has not passed"
    assert sum(answer.full for answer in found) > 12
    for answer in found:
        script.release(answer)
    assert script.quiet()


def test_a_pin_for_more_than_memory_holds_reads_each_page_once() -> None:
    script = DiskScript()
    script.fill(range(50))
    there = sorted(script.on_disk())[:24]
    assert script.ask(Pin("b", [key(n) for n in there], 1, 4000)) is None
    reads, out = 0, []
    while script.pending:
        read = script.pending.pop(0)
        reads += len(read.records)
        out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    (answer,) = answers(out, Pinned)
    assert reads == 16 == len(answer.positions)


def test_who_does_not_wait_finds_it_the_next_time() -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:2]
    answer = script.lookup(there, wait_ms=0)
    assert isinstance(answer, Hits) and answer.full == 0 and answer.reason == ErrorCode.DEADLINE
    script.settle()
    answer = script.lookup(there, wait_ms=0)
    assert isinstance(answer, Hits) and answer.full == 2
    script.release(answer)


def test_a_short_answer_of_the_metaserver_hides_nothing_that_is_on_disk() -> None:
    script = DiskScript(metaserver=True)
    script.fill(range(20))
    first, second = sorted(script.on_disk())[:2]
    there = [first, 900, second]  # the middle one is nowhere here
    assert script.lookup(there) is None
    script.settle()
    (locate,) = [one for one in script.asked if isinstance(one, commands.Locate)]
    assert locate.keys == [key(900)]
    located = Located(bytes([GONE]), 1, u32s([NO_OWNER]), [], u64s([]), [])
    (answer,) = answers(script.feed(events.LocateAnswer(locate.ask, located)), Hits)
    assert answer.full == 1
    script.release(answer)
    answer = script.lookup([first, second])
    script.settle()
    assert {first, second} <= script.sealed()


def test_an_intent_for_a_page_on_disk_is_granted_and_the_copy_there_is_kept() -> None:
    """`have` is said of verified pages only; the engine has the page anyway."""
    script = DiskScript()
    script.fill(range(20))
    number = min(script.on_disk())
    grant = script.intent([number], request="again")
    assert bytes(grant.statuses) == bytes([GRANTED])
    assert script.heard[key(number)] == (SEALED, DISK), "a promise does not hide the copy on disk"
    script.hashed(script.word(grant))
    assert script.heard[key(number)] == (SEALED, MEMORY) and number in script.on_disk()


# --- other tiers ------------------------------------------------------------------------------------------------------


def test_another_tier_gets_what_is_on_disk() -> None:
    script = DiskScript()
    script.fill(range(20))
    there, here = sorted(script.on_disk())[:2], min(script.sealed())
    assert script.ask(Pin("b", [key(here), *map(key, there)], 1, 4000)) is None
    read = script.pending.pop()
    (answer,) = answers(script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records])), Pinned)
    assert list(answer.positions) == [0, 1, 2]
    assert script.ask(Probe([key(there[0])])).levels == bytes([MEMORY])


def test_another_tier_does_not_wait_for_a_slow_disk_for_long() -> None:
    script = DiskScript()
    script.fill(range(20))
    there, here = sorted(script.on_disk())[:2], min(script.sealed())
    assert script.ask(Pin("b", [key(here), *map(key, there)], 1, 4000)) is None
    (answer,) = answers(script.tick(VERIFY_S), Pinned)
    assert list(answer.positions) == [0]
    script.settle()
    answer = script.ask(Pin("b", [*map(key, there)], 1, 4000))
    assert isinstance(answer, Pinned) and list(answer.positions) == [0, 1], "it has come meanwhile"


def test_a_probe_names_the_level() -> None:
    script = DiskScript()
    script.fill(range(20))
    answer = script.ask(Probe([key(min(script.on_disk())), key(min(script.sealed())), key(99)]))
    assert isinstance(answer, Probed)
    assert (answer.states, answer.levels) == (bytes([2, 2, 0]), bytes([DISK, MEMORY, MEMORY]))


# --- an earlier life --------------------------------------------------------------------------------------------------


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


# --- files ------------------------------------------------------------------------------------------------------------

SEGMENT = 1 << 20


class Disk:
    """Real files under a pool of 64 granules of anonymous memory."""

    def __init__(self, folder: Path) -> None:
        self.mapping = mmap.mmap(-1, 64 * GRANULE)
        self.memory = memoryview(self.mapping)
        self.folder = folder
        self.files = DiskFiles(folder, self.memory)

    def put(self, number: int, slot: int, segment: int = 1, length: int = GRANULE - 100) -> Record:
        page = (b"%08d" % number) * (GRANULE // 8)
        self.memory[slot * GRANULE : (slot + 1) * GRANULE] = page
        digest = xxhash.xxh3_128_digest(page[:length])
        return Record(key(number), segment, number * GRANULE, (length,), 16, (digest,))

    def restart(self) -> DiskFiles:
        self.files.close()
        self.files = DiskFiles(self.folder, self.memory)
        return self.files

    def close(self) -> None:
        self.files.close()
        self.memory.release()
        self.mapping.close()


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


class _Slow(DiskFiles):
    """Reads stand still until they may go on."""

    def __init__(self, folder: Path, memory: memoryview) -> None:
        self.begun, self.may = threading.Event(), threading.Event()
        super().__init__(folder, memory)

    def read(self, records: Any, slots: Any) -> Any:
        self.begun.set()
        self.may.wait()
        return super().read(records, slots)


def test_a_read_that_has_not_begun_can_be_given_up_and_reads_go_before_writes(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    disk.files.close()

    async def run() -> None:
        files = disk.files = _Slow(tmp_path / "disk", disk.memory)
        heard: list[tuple[str, int, Any]] = []
        enough = asyncio.Event()

        def hear(kind: str, job: int, found: Any) -> None:
            heard.append((kind, job, found))
            if len(heard) == 5:
                enough.set()

        threads = DiskThreads(files, asyncio.get_running_loop(), 1, lambda *a: hear("written", *a), lambda *a: hear("read", *a))
        one, two = disk.put(0, 0), disk.put(1, 1)
        threads.write(commands.DiskWrite(1, [one, two], [[0], [1]], SEGMENT))
        while not heard:
            await asyncio.sleep(0.001)
        threads.read(commands.DiskRead(2, [one], [[10]]))
        await asyncio.to_thread(files.begun.wait)
        threads.write(commands.DiskWrite(3, [disk.put(2, 2)], [[2]], SEGMENT))
        threads.read(commands.DiskRead(4, [two], [[11]]))
        threads.read(commands.DiskRead(5, [one], [[12]]))
        threads.give_up(2)  # it has begun: its slots are not free before it ends
        threads.give_up(5)
        assert len(heard) == 1, "never from inside a call"
        files.may.set()
        await enough.wait()
        assert heard[0] == ("written", 1, "") and ("read", 5, None) in heard
        rest = [one for one in heard[1:] if one[1] != 5]
        assert rest == [("read", 2, [list(one.checksums)]), ("read", 4, [list(two.checksums)]), ("written", 3, "")]
        threads.write(commands.DiskWrite(6, [disk.put(3, 3, segment=2)], [[3]], SEGMENT))
        assert await threads.stop(30) == []

    asyncio.run(run())
    disk.memory.release()
    disk.mapping.close()


def test_a_thread_that_hangs_in_a_system_call_is_shown_and_left_behind(tmp_path: Path) -> None:
    """The log is a pipe that nobody reads: appending to it does not come back until somebody does."""
    disk = Disk(tmp_path / "disk")
    end, pipe = os.pipe()
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, bytes(4096))
    os.set_blocking(pipe, True)

    async def run() -> None:
        heard: asyncio.Queue[tuple[str, int, Any]] = asyncio.Queue()
        threads = DiskThreads(
            disk.files,
            asyncio.get_running_loop(),
            2,
            lambda *a: heard.put_nowait(("written", *a)),
            lambda *a: heard.put_nowait(("read", *a)),
        )
        one, two = disk.put(0, 0), disk.put(1, 1)
        threads.write(commands.DiskWrite(1, [one], [[0]], SEGMENT))
        assert await heard.get() == ("written", 1, "")
        os.dup2(pipe, disk.files._logs[1])
        threads.write(commands.DiskWrite(2, [two], [[1]], SEGMENT))
        while not threads.busy():
            await asyncio.sleep(0.001)
        threads.read(commands.DiskRead(3, [one], [[10]]))
        assert await heard.get() == ("read", 3, [list(one.checksums)]), "the other thread goes on"
        (left,) = await threads.stop(0.05)
        assert left["doing"] == "write" and left["seconds"] > 0 and heard.empty()
        assert disk.files._dir >= 0, "nothing is closed under a job"
        while heard.empty():
            await asyncio.to_thread(os.read, end, 1 << 16)
        assert await heard.get() == ("written", 2, "") and await threads.stop(30) == []
        assert disk.files._dir == -1

    try:
        asyncio.run(run())
    finally:
        os.close(end)
        os.close(pipe)
        disk.memory.release()
        disk.mapping.close()


def test_a_disk_that_does_not_end_a_write_is_left_in_peace_and_shown() -> None:
    script = DiskScript()
    script.fill(range(14))
    for number in range(14, 18):
        script.save([number], request=f"r{number}")
    script.tick()
    hung = script.pending.pop()
    held = {int.from_bytes(record.key[16:20], "big") for record in hung.records}
    script.tick(HANG_S)
    view = script.tier.dump()["disk"]
    assert view["state"] == "hangs" and script.tier.counts["disk_hangs"] == 1 and script.tier.disk.hangs
    for number in range(18, 60):
        script.save([number], request=f"r{number}")
        script.tick()
    assert not script.pending and script.tier.counts["disk_not_stored"] > 30, "pages go, and are not stored"
    assert held <= script.sealed(), "what it may still read stays where it is"
    answer = script.lookup(sorted(held))
    assert isinstance(answer, Hits) and answer.full == len(held) and set(answer.sources) == {loads.LOCAL}
    script.release(answer)

    script.feed(events.DiskWritten(hung.job, ""))
    assert script.tier.dump()["disk"]["state"] == "ok" and held <= script.on_disk()
    script.fill(range(60, 70))
    assert script.on_disk() - held - set(range(14)), "it is written to again"
    assert script.quiet()


def test_the_metrics_of_the_disk() -> None:
    script = DiskScript()
    script.fill(range(20))
    script.lookup(sorted(script.on_disk())[:1])
    read = script.pending.pop()
    script.feed(events.DiskReadEnded(read.job, ["io_error"]))
    registry = CollectorRegistry()
    registry.register(TierCollector(script.tier))
    assert registry.get_sample_value("pegaflow_tier_disk_failures_total", {"code": "io_error"}) == 1
    assert registry.get_sample_value("pegaflow_tier_disk_pages") == len(script.on_disk())
    assert registry.get_sample_value("pegaflow_tier_disk_pages_written_total") == len(script.on_disk()) + 1
    assert registry.get_sample_value("pegaflow_tier_disk_capacity_bytes") == CAPACITY


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"disk_dir": "d"}, "go together"),
        ({"disk_size": 1 << 30}, "go together"),
        ({"disk_dir": "d", "disk_size": 1 << 30}, "evict_high"),
        ({"disk_dir": "d", "disk_size": 1 << 20, "evict_high": 0.9, "evict_low": 0.8}, "below 16 MiB"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        TierConfig(node="a", **options)
