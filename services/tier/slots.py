"""Slot allocation, pure: which granules of the pool hold a page.

    pool │ slab │ slab │ slab │ …        slab: a run of granules cut into slots of one page size
         └ slot ┘                        slot number = number of its first granule

A slab belongs to one page size while any of its slots is used; wholly free slabs go back and may serve another size. Before that,
every slot that ever started in it gets a new generation (`retired`), because a page of another size lies across those starts.
Slots are handed out only from granules that are backed (`grow`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

SLAB_GRANULES = 4096  # 64 MiB
MIN_SLABS = 8


@dataclass(slots=True)
class _Slab:
    first: int
    size: int
    free: list[int] = field(default_factory=list)
    used: int = 0


class SlotAllocator:
    """Owns the numbers, not the memory. `total` and `backed` count granules."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.backed = 0
        self.slab = max(1, min(SLAB_GRANULES, total // MIN_SLABS or total))
        self._next = 0
        self._empty: list[int] = []
        self._slabs: dict[int, _Slab] = {}
        self._partial: dict[int, dict[int, _Slab]] = {}

    def grow(self, backed: int) -> None:
        """The first `backed` granules have memory now."""
        self.backed = max(self.backed, min(backed, self.total))

    def fits(self, size: int) -> bool:
        """Can a page of `size` granules ever get a slot?"""
        return 0 < size <= self.slab

    def take(self, size: int) -> int | None:
        """A free slot for a page of `size` granules; None when there is none without freeing something."""
        if not self.fits(size):
            return None
        partial = self._partial.setdefault(size, {})
        slab = next(iter(partial.values()), None) or self._open(size)
        if slab is None:
            return None
        slot = slab.free.pop()
        slab.used += 1
        if not slab.free:
            partial.pop(slab.first, None)
        return slot

    def _open(self, size: int) -> _Slab | None:
        if self._empty:
            first = self._empty.pop()
        elif self._next + self.slab <= self.backed:
            first = self._next
            self._next += self.slab
        else:
            return None
        count = self.slab // size
        slab = _Slab(first, size, [first + size * i for i in range(count - 1, -1, -1)])
        self._slabs[first] = slab
        self._partial.setdefault(size, {})[first] = slab
        return slab

    def give(self, slot: int) -> range | None:
        """Takes a slot back. If its slab is wholly free now, returns the slab's slot starts: their generations must be raised."""
        slab = self._slabs[slot // self.slab * self.slab]
        slab.used -= 1
        slab.free.append(slot)
        if slab.used:
            self._partial.setdefault(slab.size, {})[slab.first] = slab
            return None
        del self._slabs[slab.first]
        self._partial.get(slab.size, {}).pop(slab.first, None)
        self._empty.append(slab.first)
        return range(slab.first, slab.first + self.slab // slab.size * slab.size, slab.size)

    def free_granules(self) -> int:
        """Granules that no page occupies, of those that are backed."""
        return self.backed - sum(slab.used * slab.size for slab in self._slabs.values())

    def capacity(self, size: int) -> int:
        """How many pages of this size the backed pool could hold at most."""
        return (self.backed // self.slab) * (self.slab // size) if self.fits(size) else 0

    def slabs(self, size: int) -> int:
        """How many slabs serve this page size now."""
        return sum(slab.size == size for slab in self._slabs.values())

    def validate(self) -> None:
        seen: set[int] = set()
        for first, slab in self._slabs.items():
            assert first == slab.first and first % self.slab == 0
            assert slab.used > 0 and slab.used + len(slab.free) == self.slab // slab.size
            assert len(set(slab.free)) == len(slab.free)
            assert bool(slab.free) == (first in self._partial.get(slab.size, {}))
            seen.add(first)
        assert not seen & set(self._empty) and len(set(self._empty)) == len(self._empty)
        assert len(seen) + len(self._empty) == self._next // self.slab
        assert self._next <= self.backed <= self.total
