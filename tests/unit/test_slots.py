"""Slot allocation as scripts; what holds in general is in the property test."""

from __future__ import annotations

from pegaflow.services.tier.slots import SlotAllocator


def test_a_slab_of_one_slot_that_came_full_from_an_earlier_life_is_given_back() -> None:
    allocator = SlotAllocator(64)
    allocator.grow(64)
    size = allocator.slab
    allocator.withhold({0: size})
    allocator.adopt(0, size, [0])
    assert list(allocator.give(0) or ()) == [0]
    allocator.validate()
    assert allocator.free_granules() == 64
