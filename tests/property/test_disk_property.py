"""A tier with a disk level in a simulated world: a disk that is slow, full, torn and wrong, and lives one after the other.

The world is that of test_tier_property.py, small enough that pages leave memory all the time. A life is killed at any moment; of
what it was writing then, each page has landed or not, and a log may end at any byte. Nothing wrong may ever be served, nothing
may be held at the end.
"""

from __future__ import annotations

import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.catalogue import DISK, SEALED
from pegaflow.common.wire.messages.space import Keep, Kept
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.disk.index import segment_bytes
from pegaflow.services.tier.disk.level import DiskOptions
from pegaflow.services.tier.disk.record import Record, aligned, decode_log, encode, encode_header
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState
from test_tier_property import MOSTLY, RARELY, World
from tier_world import PAGE, POOL_GRANULES, SHARDS, checksum, content

SPACE = SpaceOptions("lru", {}, 1.0, 0.6, 0.3, 0.25)
CAPACITY = 8 * SHARDS * PAGE  # fewer pages than there are keys, in segments of two
QUEUE = 3 * SHARDS * PAGE


class Segment:
    """`parts`: what stands at an offset, in place of its bytes."""

    def __init__(self, number: int) -> None:
        self.parts: dict[int, bytes] = {}
        self.log = bytearray(encode_header(number))


class DiskWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.segments: dict[int, Segment] = {}
        self.jobs: dict[int, commands.DiskWrite | commands.DiskRead] = {}
        self.late: set[int] = set()
        self.at_once = False
        self.kept: dict[bytes, tuple[float, int]] = {}
        self.answered: Kept | None = None
        self.lives = 0
        self.live()

    # --- the world ---------------------------------------------------------------------------------------------------

    def live(self) -> None:
        """A new life, with an empty pool."""
        self.lives += 1
        self.kept.clear()
        numbers = itertools.count(1000 * self.lives)
        self.tier = TierState(
            Place("a", 77, "pool", POOL_GRANULES * GRANULE, "table", "i", "e", "c"),
            lambda n: next(numbers).to_bytes(n, "little"),
            session_topic,
            metaserver=True,
            space=SPACE,
            disk=DiskOptions(CAPACITY, QUEUE, max(self.segments, default=0)),
        )
        self.tier.agent = Agent("a/77", b"blob", 0)

    @initialize()
    def begin(self) -> None:
        super().begin()

    def feed(self, event: events.Event) -> None:
        super().feed(event)
        records = self.tier.disk.index.records  # what was found bad is not there to be kept
        self.kept = {key: row for key, row in self.kept.items() if key in records and records[key].segment == row[1]}
        if self.at_once and self.jobs:
            self.end_jobs("")

    def carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Reply("keeper", Kept() as answer):
                self.answered = answer
            case commands.DiskWrite(job, records, slots, size):
                assert size == segment_bytes(CAPACITY) and len(records) == len(slots)
                self.jobs[job] = command
            case commands.DiskRead(job):
                self.jobs[job] = command
            case commands.DiskGiveUp(job):
                assert isinstance(self.jobs[job], commands.DiskRead)
                self.late.add(job)
            case commands.DiskDrop(segment):
                kept = [key for key, (until, number) in self.kept.items() if number == segment and until > self.now]
                assert not kept, "a kept page left the disk"
                assert all(job.records[0].segment != segment for job in self.jobs.values()), "dropped under a job"
                self.segments.pop(segment, None)
            case _:
                super().carry_out(command)

    def write(self, record: Record, slots: list[int] | tuple[int, ...]) -> None:
        """The bytes of one page, as they are in memory now."""
        segment = self.segments.setdefault(record.segment, Segment(record.segment))
        offset = record.offset
        for slot, length in zip(slots, record.lengths, strict=True):
            segment.parts[offset] = self.memory.get(slot, b"nothing")
            offset += aligned(length)

    def log(self, record: Record) -> None:
        self.segments[record.segment].log += encode(record)

    def read(self, record: Record, slots: list[int] | tuple[int, ...]) -> list[bytes] | str:
        offset = record.offset
        found = []
        for slot, length in zip(slots, record.lengths, strict=True):
            part = self.segments[record.segment].parts.get(offset) if record.segment in self.segments else None
            if part is None:
                return "truncated"
            self.memory[slot] = part
            found.append(checksum(part))
            offset += aligned(length)
        return found

    def end(self, number: int, trouble: str) -> None:
        job = self.jobs.pop(number)
        self.late.discard(number)
        pages = list(zip(job.records, map(tuple, job.slots), strict=True))
        if isinstance(job, commands.DiskRead):
            if trouble == "never begun":
                self.feed(events.DiskReadEnded(number, None))
                return
            found = [self.read(record, slots) for record, slots in pages]
            if trouble:
                found[-1] = trouble
            self.feed(events.DiskReadEnded(number, found))
            return
        if trouble != "never begun":
            for record, slots in pages:
                self.write(record, slots)
        if trouble == "torn":
            self.segments[job.records[0].segment].log += encode(job.records[0])[:-5]
        elif not trouble:
            for record, _ in pages:
                self.log(record)
        self.feed(events.DiskWritten(number, trouble and "io_error"))

    # --- what happens ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), trouble=st.sampled_from(["", "", "", "", "io_error", "torn", "never begun"]))
    def disk_ended(self, data: st.DataObject, trouble: str) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.jobs))), trouble)

    @rule(first=st.sampled_from([0, 4, 8]), count=st.integers(1, 6), ticks=st.integers(1, 3))
    def spill(self, first: int, count: int, ticks: int) -> None:
        """The usual course: saved, pushed out, written."""
        self.save_all("p", first, count)
        for _ in range(ticks):
            self.time(0.02, True)
            self.end_jobs("")

    @rule(first=st.sampled_from([0, 0, 4, 8]), count=st.integers(1, 8), trouble=st.sampled_from(["", "", "io_error"]))
    def load(self, first: int, count: int, trouble: str) -> None:
        """The usual course back: looked for, read, leased."""
        self.lookup("d", first, count, 0, False, 2000)
        self.end_jobs(trouble)

    def end_jobs(self, trouble: str) -> None:
        """Until the disk has nothing to do; that must come, or time would be needed to end a lookup that only reads."""
        for _ in range(100):
            if not self.jobs:
                return
            self.end(min(self.jobs), trouble)
        raise AssertionError("pages are read again and again")

    @precondition(lambda self: self.tier.disk.index.records)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 30.0]), pressed=st.booleans())
    def keep(self, data: st.DataObject, seconds: float, pressed: bool) -> None:
        """Names what is on disk; a yes is a promise until its time. `pressed`: the disk needs its room."""
        records = self.tier.disk.index.records
        keys = data.draw(st.lists(st.sampled_from(sorted(records)), min_size=1, max_size=3, unique=True))
        only = [key for key in keys if self.tier.pages.sealed_page(key) is None]
        self.answered = None
        self.feed(events.Asked("keeper", Keep(keys, int(seconds * 1e3))))
        if self.answered is not None:
            assert list(self.answered.states) == [1] * len(keys)
            for key in only:
                until = max(self.kept.get(key, (0.0, 0))[0], self.now + seconds)
                self.kept[key] = (until, records[key].segment)
        assert self.tier.disk.keeps.bytes_held(self.now) <= CAPACITY // 4
        if pressed:
            for first in (0, 4, 8, 0, 4, 8):
                self.spill(first, 6, 2)

    @precondition(lambda self: self.segments)
    @rule(data=st.data(), lost=st.booleans())
    def rot(self, data: st.DataObject, lost: bool) -> None:
        segment = self.segments[data.draw(st.sampled_from(sorted(self.segments)))]
        if segment.parts:
            at = data.draw(st.sampled_from(sorted(segment.parts)))
            segment.parts[at] = b"rot"
            if lost:  # the file ends there
                segment.parts = {offset: part for offset, part in segment.parts.items() if offset < at}

    @rule(data=st.data(), really=MOSTLY, tear=RARELY)
    def killed(self, data: st.DataObject, really: bool, tear: bool) -> None:
        """The tier and its engines die; its successor has the files only."""
        if not really or not self.segments:
            return
        for job in self.jobs.values():
            if isinstance(job, commands.DiskWrite):
                pages = list(zip(job.records, map(tuple, job.slots), strict=True))
                landed = data.draw(st.integers(0, len(pages)))
                for record, slots in pages[:landed]:
                    self.write(record, slots)
                if landed == len(pages):
                    for record, _ in pages[: data.draw(st.integers(0, landed))]:
                        self.log(record)
        self.jobs, self.late = {}, set()
        self.hashes, self.locates, self.pins, self.reads, self.given_up = [], [], [], {}, set()
        self.grants, self.leases, self.lookups, self.lookup_keys, self.catalogue = [], {}, {}, {}, {}
        self.memory, self.generations, self.sessions, self.ranks = {}, {}, {}, {}
        if tear:
            torn = self.segments[data.draw(st.sampled_from(sorted(self.segments)))]
            del torn.log[data.draw(st.integers(0, len(torn.log))) :]
        self.live()
        super().begin()
        for number in data.draw(st.permutations(sorted(self.segments))):
            segment = self.segments[number]
            size = max((at + PAGE for at in segment.parts), default=0)
            found = decode_log(bytes(segment.log), number, size)
            if found is None or not found[0]:
                del self.segments[number]
                continue
            records, _ = found
            self.feed(events.SegmentFound(number, max(one.offset + one.extent for one in records), records))
        self.feed(events.SegmentsEnded())
        assert {key for key, entry in self.catalogue.items() if entry[:2] == (SEALED, DISK)} == set(self.tier.disk.index.records)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def slots_that_are_read_into_are_nobodys(self) -> None:
        reading = [
            slot for job in self.jobs.values() if isinstance(job, commands.DiskRead) for slots in job.slots for slot in slots
        ]
        assert len(reading) == len(set(reading))
        sealed = {slot for page in self.tier.pages.index.values() if page.state is PageState.SEALED for slot in page.slots}
        assert not sealed & set(reading), "a sealed slot can still be written by the disk"
        assert self.late <= set(self.jobs)

    @invariant()
    def what_is_written_stays(self) -> None:
        writing = {
            slot: content(record.key, shard)
            for job in self.jobs.values()
            if isinstance(job, commands.DiskWrite)
            for record, slots in zip(job.records, job.slots, strict=True)
            for shard, slot in enumerate(slots)
        }
        assert all(self.memory.get(slot) == what for slot, what in writing.items()), "a slot was reused under a write"

    @invariant()
    def files_and_index_agree(self) -> None:
        known = set(self.tier.disk.index.segments)
        assert {record.segment for record in self.tier.disk.index.records.values()} <= set(self.segments)
        assert set(self.segments) <= known, "a file that nobody will ever remove"
        assert sum(segment.size for segment in self.tier.disk.index.segments.values()) <= CAPACITY

    def teardown(self) -> None:
        self.at_once = True
        self.end_jobs("")
        super().teardown()
        view = self.tier.disk.view()
        assert not any(view[name] for name in ("writing", "writing_bytes", "reading", "reading_bytes", "stuck"))


DiskWorld.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestDisk = DiskWorld.TestCase
