"""A storm of evictions while nobody listens: what is remembered for it stays small, and afterwards the catalogue is exact.

The number of evictions: PEGAFLOW_STORM in the environment, else what CI has time for. A million takes about a minute.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

from mapped_generation import MappedGeneration, live_entries
from pegaflow.common.bus.clone import Ask, Clone, Effect
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.catalogue import Delta
from pegaflow.services.tier.commands import Command, Publish
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.snapshots import Snapshots

EVICTIONS = int(os.environ.get("PEGAFLOW_STORM", "40000"))
POOL = 20_000
NAME = b"n" * 16
EPOCH = 5
BATCH = 64


class Storm:
    """Pages that are saved without end, and a clone that hears of it or not."""

    def __init__(self) -> None:
        self.out: list[Command] = []
        self.counts: Counter[str] = Counter()
        self.pages = Pages(POOL, self.out, self.counts)
        self.pages.allocator.grow(POOL)
        self.clone = Clone(1, itertools.count(1), MappedGeneration)
        self.numbers = itertools.count()
        self.now = 0.0
        self.head = 0
        self.asked: list[Ask] = []
        self.snapshots = Snapshots(self.pages)

    def save(self, heard: bool) -> None:
        """One job of pages, as the tier seals them; its deltas go out, coalesced per key."""
        self.pages.space.turn += 1
        parent = None
        for _ in range(BATCH):
            key = NAME + next(self.numbers).to_bytes(32, "big")
            page = self.pages.reserve(key, PageState.PENDING, (GRANULE,), "", 0, parent)
            assert page is not None
            page.unwritten.clear()
            self.pages.seal(page, [b"s" * 16])
            parent = page
        self.publish(heard)

    def publish(self, heard: bool) -> None:
        self.pages.flush()
        for command in self.out:
            if isinstance(command, Publish) and isinstance(command.message, Delta):
                self.head += 1
                if heard:
                    self.follow(self.clone.delta(EPOCH, self.head, command.message, self.now, 0.0))
        self.out.clear()

    def beat(self) -> None:
        self.follow(self.clone.shows(EPOCH, self.head, self.pages.beat(), self.now, 0.0))

    def follow(self, effects: list[Effect]) -> None:
        self.asked += [effect for effect in effects if isinstance(effect, Ask)]

    def answer(self) -> None:
        """The next chunk that was asked for."""
        ask = self.asked.pop(0).sync
        self.pages.flush()
        self.follow(self.clone.chunk(self.snapshots.chunk(ask), self.now, 0.0))

    def exact(self) -> bool:
        known = {key: entry_state(entry) for key, entry in live_entries(self.clone).items()}
        return known == {key: state for key, (state, _, _) in self.pages.announced.items()}


def test_the_catalogue_is_exact_after_a_storm_that_nobody_heard() -> None:
    storm = Storm()
    for _ in range(POOL // BATCH):
        storm.save(heard=True)
    storm.beat()
    while storm.asked:
        storm.answer()
    storm.beat()
    assert storm.clone.whole and storm.exact()

    while storm.counts["evicted"] < EVICTIONS:
        storm.save(heard=False)
    pages, space = storm.pages, storm.pages.space
    assert len(pages.index) <= POOL and pages.announced.count == len(pages.index) and not pages.aside
    assert len(pages._generations) <= POOL and not pages.announced._changes and not space._touched
    assert not storm.exact()

    storm.beat()  # the metaserver goes on where it stopped: it sees the head
    assert storm.asked
    while storm.asked:  # while the snapshot travels, the storm goes on
        storm.save(heard=True)
        storm.answer()
    storm.beat()
    assert storm.clone.whole and not storm.clone.syncing and storm.exact()
    pages.validate()


def test_what_a_clone_buffers_for_a_snapshot_that_never_ends_stays_small() -> None:
    storm = Storm()
    storm.save(heard=True)
    kept = 0
    for step in range(200):
        storm.now += 0.5
        storm.save(heard=True)
        storm.follow(storm.clone.tick(storm.now, 0.0))  # each attempt times out
        kept = max(kept, len(storm.clone._buffer))
        if step == 199:
            assert storm.asked and storm.clone.syncing
    assert kept <= 8 * BATCH, f"{kept} keys are buffered for a snapshot of which no chunk has come"
