"""The rank half: copies pages in threads of its own and reports the end of each copy exactly once.

    start_loads (before the forward pass) ─▶ load lane ─▶ collect: received, failed blocks
    start_saves (after it)                ─▶ save lane ─▶ collect: ended saves

Hooks only hand over. A receive is reported when no thread can write its blocks any more; a save is reported ended when
no thread can read its blocks any more, and each slot of its grant has been answered `written` or `abandoned`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pegaflow.common import faults
from pegaflow.common.fault_points import Point
from pegaflow.common.pool import GRANULE
from pegaflow.connector.copier import Copier
from pegaflow.connector.counters import Counters
from pegaflow.connector.lane import Lane
from pegaflow.connector.load_commands import Load
from pegaflow.connector.session import Grant, Member, RankBus
from pegaflow.connector.work import RankLayout, RankReport, SaveOrder, SaveWork, StepWork

GRANT_WAIT_S = 0.05
"""After the forward pass. The intent went out before it, so a grant that is not here by now will not come soon."""

CHUNK_BYTES = 24 << 20
"""Copied under one bracket, then answered for: the tier checksums a chunk while the next one is copied, and a re-attach
waits no longer than for one."""


class _SaveJob(NamedTuple):
    work: SaveWork
    mark: object
    deadline: float


class _LoadJob(NamedTuple):
    load: Load
    mark: object


@dataclass(slots=True)
class Collected:
    """What ended since the last call. `bad_blocks`: of failed loads. `refused`: receives that fail as a whole."""

    received: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    bad_blocks: set[int] = field(default_factory=set)
    report: RankReport = field(default_factory=RankReport)


class RankHalf:
    def __init__(
        self,
        copier: Copier,
        bus: RankBus,
        member: Member,
        clock: Callable[[], float],
        counters: Counters,
        log: logging.Logger,
    ) -> None:
        self._copier = copier
        self._bus = bus
        self._member = member
        self._page_bytes = copier.layout.page_bytes
        self._chunk = max(1, CHUNK_BYTES // self._page_bytes)
        self._clock = clock
        self._counters = counters
        self._log = log
        self._lock = threading.Lock()
        self._collected = Collected()
        self._last_loads = 0
        self._closing = False
        self._save_lane: Lane[_SaveJob] = Lane("pegaflow-saves", self._save, log)
        self._load_lane: Lane[_LoadJob] = Lane("pegaflow-loads", self._load, log)

    def tell(self, layout: RankLayout) -> None:
        """To the scheduler half, with the next report: beside another connector that may be the only way."""
        with self._lock:
            self._collected.report.layouts += (layout,)

    def start_loads(self, work: StepWork) -> None:
        """Called by every hook of a step that could start them; only the first one does."""
        if work.step == self._last_loads:
            return
        self._last_loads = work.step
        mark = self._copier.mark() if any(not load.refuse for load in work.loads) else None
        for load in work.loads:
            if load.refuse or load.lease is None:
                self._received(load, load.refuse or "not_leased", ())
            else:
                self._load_lane.put(_LoadJob(load, mark))

    def start_saves(self, work: SaveWork) -> None:
        """The forward pass that fills the blocks is queued; they may be read behind it."""
        self._save_lane.put(_SaveJob(work, self._copier.mark(), self._clock() + GRANT_WAIT_S))

    def collect(self) -> Collected:
        with self._lock:
            collected, self._collected = self._collected, Collected()
        return collected

    def close(self) -> None:
        """Waits for the chunks under way, gives up what is queued behind them, then ends the bus."""
        self._closing = True
        self._load_lane.close()
        self._save_lane.close()
        self._bus.close()

    # Loading.

    def _load(self, job: _LoadJob) -> None:
        load = job.load
        done, code = 0, "copy_failed"
        begun = self._clock()
        try:
            done, code = self._fetch(job)
            faults.reach(Point.CONNECTOR_LOAD_BEFORE_REPORT)
        except Exception:
            self._log.exception("load_failed: request %s", load.request_id)
        self._counters.observe("load_copy_seconds", self._clock() - begun)
        self._counters.add("pages_loaded", done)
        self._counters.add("bytes_loaded", done * self._page_bytes)
        self._counters.add("tails_loaded", int(load.tail and done == len(load.blocks)))
        self._received(load, code, load.blocks[done:])

    def _fetch(self, job: _LoadJob) -> tuple[int, str]:
        """Copies the pages. Returns how many of the first ones are good, and why not all are."""
        load = job.load
        assert load.lease is not None
        shards, shard = self._member.shards, self._member.shard
        slots, generations = load.slots[shard::shards], load.generations[shard::shards]
        for first in range(0, len(load.blocks), self._chunk):
            chunk = slice(first, first + self._chunk)
            if self._closing:
                return first, "closing"
            view = self._bus.begin_copy(load.lease.session)
            if view is None:
                return first, "session_over"
            try:
                # Before: the page has not been replaced yet. After: nor was it while it was being read.
                if any(view.generation(s) != g for s, g in zip(slots[chunk], generations[chunk], strict=True)):
                    return first, "generation_changed"
                offsets = [slot * GRANULE for slot in slots[chunk]]
                faults.reach(Point.CONNECTOR_LOAD_BEFORE_COPY)
                self._copier.fetch(view.memory, load.blocks[chunk], offsets, job.mark)
                faults.reach(Point.CONNECTOR_LOAD_AFTER_COPY)
                if any(view.generation(s) != g for s, g in zip(slots[chunk], generations[chunk], strict=True)):
                    return first, "generation_changed"
            finally:
                self._bus.end_copy()
        return len(load.blocks), ""

    def _received(self, load: Load, code: str, bad: Sequence[int]) -> None:
        with self._lock:
            collected = self._collected
            collected.received.add(load.request_id)
            if code:
                collected.report.failed[load.request_id] = code
                if load.refuse or load.lease is None:
                    collected.refused.add(load.request_id)
                else:
                    collected.bad_blocks.update(bad)

    # Saving.

    def _save(self, job: _SaveJob) -> None:
        work = job.work
        granted: dict[int, int] = {}
        grant: Grant | None = None
        try:
            grant = self._bus.take_grant(work.ref, 0.0 if self._closing else job.deadline)
            if grant is not None:
                granted = dict(zip(grant.positions, grant.slots, strict=True))
        except Exception:
            self._log.exception("grant_failed: intent %d", work.ref.intent)
        for order in work.saves:
            outcome = "no_grant"
            if grant is not None:
                try:
                    outcome = self._store(job, grant, granted, order)
                    faults.reach(Point.CONNECTOR_SAVE_BEFORE_REPORT)
                except Exception:
                    outcome = "failed"
                    self._log.exception("save_failed: save %d of intent %d", order.save, work.ref.intent)
            self._counters.add("saves", label=outcome)
            with self._lock:
                self._collected.report.ended[order.save] = 1

    def _store(self, job: _SaveJob, grant: Grant, granted: dict[int, int], order: SaveOrder) -> str:
        """Copies one request's part, and answers for each of its slots."""
        last = order.first + len(order.blocks) - 1
        positions = [position for position in range(order.first, last + 1) if position in granted]
        if not positions:
            return "not_granted"
        done = 0
        begun = self._clock()
        try:
            while done < len(positions) and not self._closing:
                chunk = positions[done : done + self._chunk]
                view = self._bus.begin_copy(grant.ref.session)
                if view is None:
                    break
                try:
                    blocks = [order.blocks[position - order.first] for position in chunk]
                    faults.reach(Point.CONNECTOR_SAVE_BEFORE_COPY)
                    self._copier.store(view.memory, blocks, [granted[p] * GRANULE for p in chunk], job.mark)
                    faults.reach(Point.CONNECTOR_SAVE_AFTER_COPY)
                finally:
                    self._bus.end_copy()
                self._bus.written(grant, chunk)
                done += len(chunk)
        finally:
            # The last touch of these slots, in any case.
            if done < len(positions):
                self._bus.abandoned(grant, positions[done:])
            self._counters.observe("save_copy_seconds", self._clock() - begun)
            self._counters.add("pages_saved", done)
            self._counters.add("bytes_saved", done * self._page_bytes)
            self._counters.add("tails_saved", int(order.tail and positions[-1] == last and done == len(positions)))
        return "written" if done == len(positions) else "abandoned"
