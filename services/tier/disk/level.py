"""The disk level, pure: pages that leave memory are written out, and read back when somebody asks for them.

    evicted ahead of need ──offer──▶ written ──▶ out of memory, still in the catalogue (level 1)
    evicted at once, queue full, disk bad or hanging ▶ out of memory: not stored, counted
    a replica of another tier's page ──────────▶ out of memory: to fetch it again costs less than to write it

    asked for ──read──▶ slots reserved ▶ read, checksums taken ▶ they fit? ▶ sealed
                                         │ deadline: given up; the slots stay in quarantine until the read has ended
                                         └ error, other bytes: the page is off the disk for good

Nobody waits for the disk while holding slots; jobs hold one reference on each of their pages and a hold on their segment. What is
read stays on disk, so that it is not written when it is evicted again.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.inspection import Step
from pegaflow.services.tier.commands import Command, DiskDrop, DiskGiveUp, DiskRead, DiskWrite, Log
from pegaflow.services.tier.disk.index import DiskIndex
from pegaflow.services.tier.disk.keeps import DiskKeeps
from pegaflow.services.tier.disk.record import ALIGN, MAX_SHARDS, Record
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages

JOB_BYTES = 8 << 20
READ_DEADLINE_S = 3.0
FAILED = "disk_failed_"
"""What the names of counts by code begin with."""
HANG_S = 5.0
"""When no write has ended for so long while some are under way, nothing more is offered."""
GONE_KEYS = 1024
"""Of a segment that went, taken out of the catalogue in one tick."""
PAUSE_S = 1.0
"""After a write has failed nothing is written for so long: a full disk is not asked for every page."""


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """`capacity` 0: there is no disk level. `queue` bytes may be on their way in each direction. `floor`: see `DiskIndex`.

    `keep_share`: of the capacity, what segments with kept pages may take.
    """

    capacity: int = 0
    queue: int = 256 << 20
    floor: int = 0
    keep_share: float = 0.25


@dataclass(slots=True, eq=False)
class _Job:
    """Pages and where they are on disk, all in one segment."""

    pages: list[Page]
    records: list[Record]
    size: int
    deadline: float = float("inf")
    given_up: bool = False


class DiskLevel:
    """Everything that is on disk or on its way. `wake(key)` tells those who wait for a key."""

    def __init__(
        self,
        pages: Pages,
        out: list[Command],
        counts: Counter[str],
        jobs: itertools.count[int],
        wake: Callable[[bytes], None],
        options: DiskOptions,
    ) -> None:
        self._pages, self._out, self._counts, self._jobs, self._wake = pages, out, counts, jobs, wake
        self.on = options.capacity > 0
        self.index = DiskIndex(options.capacity, options.floor)
        self.keeps = DiskKeeps(self.index, options.keep_share)
        self.index.spared = lambda: self.keeps.segments(pages.space.now)
        self._queue = options.queue
        self.loaded = not options.floor
        self.writing: dict[int, _Job] = {}
        self.reading: dict[int, _Job] = {}
        self.writing_bytes = self.reading_bytes = 0
        self.elsewhere: Callable[[Page], bool] = lambda page: False
        """Does another tier have this page? It is not written then; the tier sets it."""
        self._batch: _Job | None = None
        self._hungry: dict[bytes, None] = {}
        self._paused_until = 0.0
        self._stuck = 0
        self._wrote_at = 0.0
        self._hangs = False
        if self.on:
            pages.space.spill, pages.space.missed = self._offer, self._missed

    # --- out of memory -----------------------------------------------------------------------------------------------

    def _offer(self, page: Page) -> bool | None:
        """True: it is being written, and held. False: nothing is to be gained by waiting. None: not now, but soon."""
        if page.key in self.index.records or self.hangs or self._pages.space.now < self._paused_until or self.elsewhere(page):
            return False
        if not self.loaded or (self.writing_bytes and self.writing_bytes + page.size > self._queue):
            return None
        if len(page.slots) > MAX_SHARDS:
            return False
        place = self.index.place(page.lengths)
        self._after_place()
        if place is None:
            return False
        segment, offset = place
        job = self._batch
        if job is None or job.records[0].segment != segment or job.size + page.size > JOB_BYTES:
            self.post()
            job = self._batch = _Job([], [], 0)
        job.pages.append(page)
        job.records.append(Record(page.key, segment, offset, page.lengths, page.rows, tuple(page.checksums)))
        job.size += page.size
        self.writing_bytes += page.size
        return True

    def _missed(self, page: Page) -> None:
        """The page is evicted; is it kept here?"""
        if page.key not in self.index.records:
            self._counts["disk_left_to_owner" if self.elsewhere(page) else "disk_not_stored"] += 1

    def post(self) -> None:
        """Writes what has been offered."""
        job, self._batch = self._batch, None
        if job is not None:
            number = next(self._jobs)
            if not self.writing:
                self._wrote_at = self._pages.space.now
            self.writing[number] = job
            slots = tuple(tuple(page.slots) for page in job.pages)
            self._out.append(DiskWrite(number, tuple(job.records), slots, self.index.segment))

    def written(self, number: int, code: str) -> None:
        """A write has ended; empty: it is on disk. Nothing reads these slots for it any more."""
        job = self.writing.pop(number, None)
        if job is None:
            return
        self.writing_bytes -= job.size
        self._wrote_at, hung = self._pages.space.now, self._hangs
        self._hangs = False
        if hung:
            self._out.append(Log("disk_answers_again", {"writing": len(self.writing)}))
        segment = job.records[0].segment
        if code:
            self._counts["disk_write_failed"] += len(job.pages)
            self._counts[FAILED + code] += 1
            self._paused_until = self._pages.space.now + PAUSE_S
            self.index.close(segment)
            self._out.append(Log("disk_write_failed", {"code": code, "pages": len(job.pages), "segment": segment}))
        for page, record in zip(job.pages, job.records, strict=True):
            self.index.let_go(segment)
            if not code and page.state is PageState.SEALED:
                self.index.add(record)
                self._pages.store_below(record.key, record.size)
                self._pages.chronicle.one(Step.DISK_WRITTEN, record.key)
                self._counts["disk_written"] += 1
                self._counts["disk_written_bytes"] += record.size
            self._pages.space.spilled(page)
            self._pages.free_if_done(page)
        if code and not self.index.segments[segment].jobs and not self.index.segments[segment].keys:
            self.index.drop(segment)  # it may not even have a file; it must not cost older pages their room
            self._after_place()

    def _after_place(self) -> None:
        """Room was made."""
        self._out.extend(DiskDrop(number) for number in self.index.dropped)
        self.index.dropped.clear()

    def _say_gone(self) -> None:
        """What went with a segment is read no more; the catalogue hears of it bit by bit, and its hint is wrong for so long."""
        gone = self.index.gone
        keys = [gone.popleft() for _ in range(min(GONE_KEYS, len(gone)))]
        for key in keys:
            if key not in self.index.records:  # it may have been written again
                self._pages.drop_below(key)
        self._pages.chronicle.note(Step.DISK_EVICTED, keys)
        self._counts["disk_evicted"] += len(keys)

    # --- back into memory --------------------------------------------------------------------------------------------

    def has(self, key: bytes) -> bool:
        """Can this key be read from here? Its bytes are verified then."""
        return key in self.index.records and not self._stuck

    def full(self, key: bytes) -> bool:
        """Is so much being read that this key has to wait?"""
        return bool(self.reading_bytes) and self.reading_bytes + self.index.records[key].size > self._queue

    def waits(self, key: bytes) -> bool:
        """The key will be read when there is room among the reads; who waits for it is woken."""
        if not self.reading:
            return False
        self._hungry[key] = None
        return True

    def read(self, keys: Iterable[bytes], now: float, before: Page | None = None) -> list[bytes]:
        """Begins to read a prefix of `keys`, all on disk and none in memory, which continue the page `before`.

        Returns those that got slots. Fewer than asked for: no space in memory, or enough is being read already.
        """
        job: _Job | None = None
        started: list[bytes] = []
        grant = next(self._pages.grants)
        for order, key in enumerate(keys):
            if self._stuck or self.full(key) or key in self._pages.index:  # named twice
                break
            record = self.index.records[key]
            page = self._pages.reserve(key, PageState.FETCHING, record.lengths, parent=before)
            if page is None:
                break
            before = page
            page.refs += 1
            page.replica, page.rows, page.grant, page.order = False, record.rows, grant, order
            self._pages.store_granted(page)
            if job is None or job.records[0].segment != record.segment or job.size + record.size > JOB_BYTES:
                self._post_read(job)
                job = _Job([], [], 0, now + READ_DEADLINE_S)
            job.pages.append(page)
            job.records.append(record)
            job.size += record.size
            self.reading_bytes += record.size
            self.index.hold(record.segment)
            started.append(key)
        self._post_read(job)
        return started

    def _post_read(self, job: _Job | None) -> None:
        if job is not None:
            number = next(self._jobs)
            self.reading[number] = job
            self._out.append(DiskRead(number, tuple(job.records), tuple(tuple(page.slots) for page in job.pages)))

    def read_ended(self, number: int, found: Sequence[Sequence[bytes] | str] | None) -> None:
        """Checksums per page of what is in the slots now, or why it could not be read. None: nothing of it could."""
        job = self.reading.pop(number, None)
        if job is None:
            return
        self.reading_bytes -= job.size
        self._stuck -= job.given_up
        answers = found if found is not None else [str(ErrorCode.INTERNAL)] * len(job.pages)
        for page, record, answer in zip(job.pages, job.records, answers, strict=True):
            self.index.let_go(record.segment)
            page.refs -= 1
            if job.given_up:
                self._counts["quarantine_left"] += 1
                self._pages.free_if_done(page)
                continue
            code = answer if isinstance(answer, str) else "" if tuple(answer) == record.checksums else str(ErrorCode.BAD_CHECKSUM)
            if code:
                self._bad(page, record, code)
            else:
                page.unwritten.clear()
                if self._pages.seal(page, record.checksums):
                    self._pages.chronicle.one(Step.DISK_READ, record.key)
                    self._counts["disk_read"] += 1
                    self._counts["disk_read_bytes"] += record.size
            self._wake(record.key)
        self._feed()

    def _bad(self, page: Page, record: Record, code: str) -> None:
        self._counts["disk_bad_checksum" if code == ErrorCode.BAD_CHECKSUM else "disk_read_failed"] += 1
        self._counts[FAILED + code] += 1
        self._out.append(Log("disk_page_lost", {"key": record.key.hex(), "code": code, "segment": record.segment}))
        self._pages.chronicle.one(Step.DISK_LOST, record.key, (code,))
        if self.index.remove(record):
            self._pages.drop_below(record.key)
            self.keeps.let_go([record.key])  # or the next copy, in another segment, would be held beyond the share
        self._pages.doom(page)

    def _feed(self) -> None:
        hungry, self._hungry = self._hungry, {}
        for key in hungry:
            self._wake(key)

    @property
    def hangs(self) -> bool:
        """A read is past its deadline and has not ended, or no write ends: the disk is left in peace until one does."""
        return self._hangs or self._stuck > 0

    def tick(self, now: float) -> None:
        """Gives up what is past its deadline."""
        self._say_gone()
        if self.writing and not self._hangs and now - self._wrote_at >= HANG_S:
            # What is being written stays in memory: the disk may still read those slots, whatever it says of them in the end.
            self._hangs = True
            self._counts["disk_hangs"] += 1
            self._out.append(Log("disk_hangs", {"writing": len(self.writing), "bytes": self.writing_bytes}))
        for number, job in self.reading.items():
            if job.deadline <= now and not job.given_up:
                job.given_up = True
                self._stuck += 1
                self._counts["disk_given_up"] += 1
                self._out.append(DiskGiveUp(number))
                for page in job.pages:
                    self._pages.quarantine(page)
                    self._pages.doom(page)
                    self._wake(page.key)
        if self._stuck:
            self._feed()

    # --- an earlier life ---------------------------------------------------------------------------------------------

    def found(self, number: int, size: int, records: Sequence[Record], begins: bool = True) -> None:
        """A segment of an earlier life. Its pages are served like any others: each is verified when it is read."""
        used = self.index.adopt(number, size, records, begins)
        self._after_place()
        self._say_gone()
        for record in used:
            self._pages.store_below(record.key, record.size)
        self._pages.chronicle.note(Step.DISK_FOUND, [record.key for record in used])
        self._counts["disk_found"] += len(used)

    def all_found(self) -> None:
        """That was the last segment of an earlier life: writing may begin."""
        self.loaded = True
        self._out.append(Log("disk_loaded", {"pages": len(self.index.records), "segments": len(self.index.segments)}))

    # --- looking -----------------------------------------------------------------------------------------------------

    def held(self) -> list[Page]:
        """Every reference of this level, one by one."""
        jobs = [*self.writing.values(), *self.reading.values(), *([self._batch] if self._batch else [])]
        return [page for job in jobs for page in job.pages]

    def _state(self) -> str:
        """One word for people."""
        if not self.on:
            return "off"
        if self.hangs:
            return "hangs"
        if self._pages.space.now < self._paused_until:
            return "paused"
        return "ok" if self.loaded else "loading"

    def view(self) -> dict[str, Any]:
        """For the dump."""
        return {
            "on": self.on,
            "state": self._state(),
            "loaded": self.loaded,
            "pages": len(self.index.records),
            "segments": len(self.index.segments),
            "taken_bytes": self.index.taken,
            "capacity_bytes": self.index.capacity,
            "kept_pages": len(self.keeps),
            "kept_bytes": self.keeps.bytes_held(self._pages.space.now),
            "writing": len(self.writing),
            "writing_bytes": self.writing_bytes,
            "reading": len(self.reading),
            "reading_bytes": self.reading_bytes,
            "stuck": self._stuck,
        }

    def validate(self) -> None:
        self.index.validate()
        assert self.index.taken <= max(self.index.capacity, self.index.segment) or not self.loaded
        assert self._batch is None, "offered and not posted"
        here, below = {key: record.size for key, record in self.index.records.items()}, self._pages.below
        assert here == {key: size for key, size in below.items() if key in here}
        assert below.keys() - here.keys() <= set(self.index.gone), "a key in the catalogue that is not on disk"
        holds: Counter[int] = Counter()
        for job in [*self.writing.values(), *self.reading.values()]:
            assert job.pages and all(page.refs > 0 for page in job.pages)
            assert len({record.segment for record in job.records}) == 1
            holds[job.records[0].segment] += len(job.pages)
        assert {number: segment.jobs for number, segment in self.index.segments.items() if segment.jobs} == dict(holds)
        assert self.writing_bytes == sum(job.size for job in self.writing.values())
        assert self.reading_bytes == sum(job.size for job in self.reading.values())
        assert self.writing or not self._hangs
        assert self._stuck == sum(job.given_up for job in self.reading.values())
        assert all(record.offset % ALIGN == 0 for record in self.index.records.values())
