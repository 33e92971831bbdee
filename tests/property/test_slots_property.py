"""The slot allocator against a model that knows only granules: who has which, and what slabs are cut how."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pegaflow.services.tier.slots import SlotAllocator

TOTAL = 133  # eight slabs of 16 granules, and one of 5
SLAB = 16
SIZES = [1, 3, 5, 7, 16]


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.allocator = SlotAllocator(TOTAL)
        self.taken: dict[int, int] = {}
        self.backed = 0
        self.cuts: dict[int, int] = {}

    @initialize(backed=st.integers(0, TOTAL))
    def begin(self, backed: int) -> None:
        self.grow(backed)

    @rule(backed=st.integers(0, TOTAL))
    def grow(self, backed: int) -> None:
        self.backed = max(self.backed, backed)
        self.allocator.grow(backed)

    @rule(size=st.sampled_from(SIZES), count=st.integers(1, 20))
    def take(self, size: int, count: int) -> None:
        for _ in range(count):
            could = self.room(size)
            slot = self.allocator.take(size)
            self.heed()
            assert (slot is not None) == could, "refused, or given what is not there"
            if slot is None:
                return
            self.taken[slot] = size

    def room(self, size: int) -> bool:
        """Is there a free slot in a slab of this size, or an empty slab that is backed and large enough?"""
        for first in range(0, TOTAL, SLAB):
            end = min(first + SLAB, TOTAL)
            inside = {slot: cut for slot, cut in self.taken.items() if first <= slot < end}
            if not inside and end <= self.backed and size <= end - first:
                return True
            if inside and size in inside.values() and (len(inside) + 1) * size <= end - first:
                return True
        return False

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), count=st.integers(1, 20))
    def give(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.taken))):
            slot = data.draw(st.sampled_from(sorted(self.taken)))
            size = self.taken.pop(slot)
            first = slot // SLAB * SLAB
            retired = self.allocator.give(slot)
            self.heed()
            empty = not any(first <= other < first + SLAB for other in self.taken)
            assert (retired is not None) == empty
            if retired is not None:
                assert list(retired) == list(range(first, min(first + SLAB, TOTAL) - size + 1, size))

    def heed(self) -> None:
        for first, size in self.allocator.cuts:
            self.cuts[first] = size
        self.allocator.cuts.clear()

    @rule()
    def live_again(self) -> None:
        """A new life takes the slabs over as they were cut."""
        old, self.allocator = self.allocator, SlotAllocator(TOTAL)
        assert old.slab == SLAB
        self.allocator.grow(self.backed)
        cut = {first: size for first, size in self.cuts.items() if size}
        self.allocator.withhold(cut)
        for first, size in cut.items():
            self.allocator.adopt(first, size, [slot for slot in self.taken if first <= slot < first + SLAB])

    @invariant()
    def sound(self) -> None:
        self.allocator.validate()
        covered = [granule for slot, size in self.taken.items() for granule in range(slot, slot + size)]
        assert len(covered) == len(set(covered)), "two pages share a granule"
        assert all(granule < self.backed for granule in covered), "a slot without memory"
        assert self.allocator.used == len(covered)
        assert self.allocator.free_granules() == self.backed - len(covered)
        slabs = {slot // SLAB * SLAB: size for slot, size in self.taken.items()}
        assert all(slabs[slot // SLAB * SLAB] == size for slot, size in self.taken.items())
        assert slabs == {first: size for first, size in self.cuts.items() if size}
        for size in SIZES:
            spare = sum(
                (min(SLAB, TOTAL - first) // cut - sum(first <= slot < first + SLAB for slot in self.taken)) * cut
                for first, cut in slabs.items()
                if cut != size
            )
            assert self.allocator.scattered(size) == spare


World.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlots = World.TestCase
