"""The index against dictionaries: generations that come, grow and end in any order, over sweeps and growing tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mapped_generation import MappedGeneration
from pegaflow.common.bus.generation import pack_entry
from pegaflow.common.wire.digest import DIGEST_MOD, entry_digest
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED
from pegaflow.services.metaserver import index as index_module
from pegaflow.services.metaserver.index import Index, IndexGeneration
from pegaflow.services.metaserver.table import LEFT, RIGHT, SLOTS, Names, Table

KEYS = [b"key-%d" % n for n in range(120)]
ENTRIES = [pack_entry(GONE, 0, 0), pack_entry(PENDING, 0, 8), *(pack_entry(SEALED, 0, size) for size in range(8, 14))]


class IndexAgainstDictionaries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = Index(2, 16)
        self.index._spare = 6
        self.open: list[tuple[IndexGeneration, MappedGeneration]] = []

    @precondition(lambda self: len(self.open) < 4)
    @rule()
    def begins(self) -> None:
        self.open.append((self.index.generation("n"), MappedGeneration()))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3), first=st.integers(0, 119), count=st.integers(1, 60), entry=st.sampled_from(ENTRIES))
    def puts(self, which: int, first: int, count: int, entry: int) -> None:
        keys = KEYS[first : first + count]
        for generation in self.open[which % len(self.open)]:
            generation.put(keys, [entry] * len(keys))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 3))
    def ends(self, which: int) -> None:
        real, _ = self.open.pop(which % len(self.open))
        real.void()
        real.void()
        real.put(KEYS[:3], [ENTRIES[2]] * 3)  # too late: nothing

    @precondition(lambda self: self.index.busy)
    @rule(steps=st.integers(1, 8))
    def works(self, steps: int) -> None:
        for _ in range(steps):
            self.index.work()
            self.index._spare = 6  # numbers of sets are forgotten and given again all the time
            self.index.validate()

    @invariant()
    def shows_what_was_put(self) -> None:
        self.index.validate()
        rows = [
            dict(self.index.rows(number)) for number, count in zip(*self.index.sets_of(KEYS), strict=True) for _ in range(count)
        ]
        for real, model in self.open:
            assert [row.get(real.number, 0) for row in rows] == [model.entries.get(key, 0) for key in KEYS]
            assert real.counts == model.counts
            total = sum(entry_digest(key, entry & 0xFF, entry >> 8 & 0xFF, entry >> 16) for key, entry in model.entries.items())
            assert (real.total - total) % DIGEST_MOD == 0

    def teardown(self) -> None:
        """What nobody holds any more leaves no trace."""
        self.index._spare = 4 * len(self.index._numbers)
        held = {key for _, model in self.open for key in model.entries}
        for _ in range(10_000):
            if not self.index.busy:
                break
            self.index.work()
        assert not self.index.busy, "work that never ends"
        assert len(self.index) == len(held)
        used = set(self.index.sets_of(KEYS)[0])
        assert len(self.index._numbers) <= len(used) + self.index._spare


IndexAgainstDictionaries.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestIndexAgainstDictionaries = IndexAgainstDictionaries.TestCase


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(1, 400), max_size=80), st.sets(st.integers(1, 400), max_size=40))
def test_a_table_that_is_too_small_spills_and_loses_nothing(put: set[int], removed: set[int]) -> None:
    """Names whose two buckets are the same few: 32 slots for up to 80 names."""
    table = Table(4)
    names = np.array(sorted(put), np.uint64)
    table.insert(_spread(names), names.astype(np.uint32))
    table.validate()
    assert table.count == len(put) and table.spilled >= len(put) - 4 * SLOTS
    gone = np.array(sorted(removed), np.uint64)
    here = table.change(_spread(gone), np.zeros(len(gone), np.uint32))
    assert set(gone[here].tolist()) == put & removed
    table.validate()
    everything = np.arange(1, 401, dtype=np.uint64)
    assert set(table.get(_spread(everything)).tolist()) - {0} == put - removed


def _spread(numbers: Names) -> Names:
    """Small numbers as names over the whole range."""
    return numbers * np.uint64(0x9E3779B97F4A7C15) & np.uint64(LEFT) | np.uint64(RIGHT)


def test_sets_that_nobody_uses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_SPARE_SETS", 8)
    index = Index(2, 16)
    index._spare = 8
    generation = index.generation("a")
    for size in range(100):
        generation.put(KEYS[:2], [pack_entry(SEALED, 0, size)] * 2)
        while index.busy:
            index.work()
    index.validate()
    assert len(index._sets) < 40 and generation.entries_of([KEYS[0]]) == [pack_entry(SEALED, 0, 99)]
