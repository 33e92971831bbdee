"""Nothing is done in one long event, and what comes between two slices makes no difference: worlds with the narrowest slices.

What walks over all pages looks at one slab at a time, an end deals with one slot, a digest is brought up to date with each event.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import entry_digest
from pegaflow.common.wire.messages.catalogue import Located, Sync, SyncChunk
from pegaflow.common.wire.messages.inspection import Find, Found
from pegaflow.common.wire.messages.transfer import Taken
from pegaflow.services.tier import adoption, announced, commands, departures, events, finds, handover, leases, snapshots
from pegaflow.services.tier.disk import level
from pegaflow.services.tier.eviction import holds, space
from pegaflow.services.tier.page import PageState
from test_adoption_property import Lives
from test_disk_property import DiskWorld
from test_tier_property import World
from tier_world import FINGERPRINT, KEYS

NARROW: list[tuple[ModuleType, str]] = [
    (adoption, "ROWS"),
    (announced, "FOLD"),
    (departures, "SLOTS"),
    (finds, "SLICE"),
    (handover, "SLICE"),
    (handover, "BATCH_KEYS"),
    (holds, "BATCH"),
    (leases, "END_PAGES"),
    (level, "GONE_KEYS"),
    (snapshots, "SYNC_KEYS"),
    (space, "DUE_PAGES"),
    (space, "TOUCHED_PAGES"),
]


class Narrow(World):
    """A metaserver takes snapshots, a person looks for keys, and pages are handed over, all of it slowly."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for module, name in NARROW:
            self.patch.setattr(module, name, 1)
        super().__init__()
        self.syncs = 0
        self.copy: dict[bytes, tuple[int, int, int]] = {}
        self.digest = 0
        self.chunk = self.chunks = 0
        self.wanted: dict[str, set[bytes]] = {}
        self.looking = 0

    def replied(self, asker: Any, message: Any) -> None:
        match message:
            case SyncChunk():
                self.chunks = message.chunks
                columns = zip(message.keys, message.states, message.levels, message.sizes, strict=True)
                rows = {key: (state, level, size) for key, state, level, size in columns}
                assert not rows.keys() & self.copy.keys(), "a key in two chunks"
                self.copy |= rows
            case Found():
                here = self.wanted.pop(asker)
                assert here <= {bytes.fromhex(key) for key in message.keys}, "a key that was here all the time was not found"
            case _:
                super().replied(asker, message)

    def carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Log("handed_over"):
                seen = {key for keys in self.tier.draining.handover._seen for key in keys}
                assert self.here() <= seen, "done, and a page was never looked at"
            case _:
                super().carry_out(command)

    def here(self) -> set[bytes]:
        """Keys that can be read here."""
        sealed = {key for key, page in self.tier.pages.index.items() if page.state is PageState.SEALED}
        return sealed | self.tier.disk.index.records.keys()

    def feed(self, event: events.Event) -> None:
        super().feed(event)
        index, records = self.tier.pages.index, self.tier.disk.index.records
        for name, keys in self.wanted.items():
            self.wanted[name] = {key for key in keys if key in index or key in records}

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule()
    def snapshot(self) -> None:
        """The next chunk; the first one says what all of them together must be."""
        if self.chunk == self.chunks:
            self.syncs, self.chunk, self.copy = self.syncs + 1, 0, {}
        if not self.chunk:
            self.tier.pages.flush()
            self.digest = int.from_bytes(self.tier.pages.beat().digest, "little")
        before = dict(self.copy)
        self.feed(events.Asked("metaserver", Sync(9, self.syncs, self.chunk)))
        if self.copy == before and self.chunks == 0:
            return
        self.chunk += 1
        if self.chunk == self.chunks:
            total = sum(entry_digest(key, *entry) for key, entry in self.copy.items()) % (1 << 128)
            assert total == self.digest, "the snapshot is not what was there when it began"

    @rule(saves=st.lists(st.tuples(st.sampled_from([0, 4, 8]), st.integers(1, 8)), min_size=2, max_size=4))
    def snapshot_meanwhile(self, saves: list[tuple[int, int]]) -> None:
        """The usual course: it is told while pages come and others go for them."""
        for first, count in saves:
            self.snapshot()
            self.save_all("p", first, count)
        for _ in range(len(KEYS)):
            self.snapshot()
            if self.chunk == self.chunks:
                return

    @rule(at=st.integers(0, len(KEYS) - 1), all_of_them=st.booleans())
    def look_for(self, at: int, all_of_them: bool) -> None:
        prefix = FINGERPRINT if all_of_them else KEYS[at]
        self.looking += 1
        name = f"person {self.looking}"
        self.wanted[name] = {key for key in self.tier.pages.index.keys() | self.tier.disk.index.records if key.startswith(prefix)}
        self.feed(events.Asked(name, Find(prefix)))

    @precondition(lambda self: self.resumes)
    @rule()
    def resumed_once(self) -> None:
        self.resumes -= 1
        self.feed(events.Resumed())

    @rule()
    def tick(self) -> None:
        self.now += 0.02
        self.feed(events.Tick())

    @rule(taken=st.integers(0, 2))
    def hand_over_all(self, taken: int) -> None:
        """Others take some of it, or have it, until it is done or stands still."""
        if not self.tier.draining.asked:
            self.tier.draining.begin(True)
        self.offers.clear()
        for _ in range(12):
            self.now += 0.3
            self.feed(events.Tick())
            for ask in [ask for ask in self.locates if ask.holes]:
                self.locates = [other for other in self.locates if other is not ask]
                states = bytes([2] * len(ask.keys))
                located = Located(states, 1, u32s([0xFFFFFFFF] * len(ask.keys)), [], u32s(), [])
                self.feed(events.LocateAnswer(ask.ask, located))
            while self.offers:
                if isinstance(offer := self.offers[0], commands.Offer):
                    self.offers.pop(0)
                    self.feed(events.TakeAnswer(offer.job, Taken(taken)))
                else:
                    self.offered(fail=False, count=0, alone=False)

    def teardown(self) -> None:
        self.patch.undo()
        self.settle()
        super().teardown()

    def settle(self) -> None:
        for _ in range(30):
            self.resumed()
            self.feed(events.Tick())
        assert not self.wanted, "nobody has answered"


class NarrowWorld(Narrow):
    """An engine that dies comes back when what it had has been dealt with; others go on meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.away: list[str] = []

    def come(self, engine: str) -> None:
        if engine in self.sessions or not self.tier.departures.going_on:
            super().come(engine)
        else:
            self.away.append(engine)

    @precondition(lambda self: self.away)
    @rule()
    def comes_back(self) -> None:
        if not self.tier.departures.going_on:
            super().come(self.away.pop())

    def settle(self) -> None:
        super().settle()
        while self.away:
            self.comes_back()


class NarrowLives(Narrow, Lives):
    def begin_life(self, held: frozenset[int], dead: frozenset[int]) -> None:
        super().begin_life(held, dead)
        self.resumes = self.chunk = self.chunks = 0
        self.wanted = {}

    def settle(self) -> None:
        self.mute, self.fuse = False, -1
        super().settle()
        self.scan_all()
        super().settle()


class NarrowDisk(Narrow, DiskWorld):
    def live(self) -> None:
        super().live()
        self.resumes = self.chunk = self.chunks = 0
        self.wanted = {}


NarrowWorld.TestCase.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
TestNarrowWorld = NarrowWorld.TestCase
NarrowLives.TestCase.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)
TestNarrowLives = NarrowLives.TestCase
NarrowDisk.TestCase.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)
TestNarrowDisk = NarrowDisk.TestCase
