"""Slot allocation, pure: which granules of the pool hold a page.

    pool │ slab │ slab │ slab │ …        slab: a run of granules cut into slots of one page size
         └ slot ┘                        slot number = number of its first granule

A slab belongs to one page size while any of its slots is used; wholly free slabs go back and may serve another size. Before that,
every slot that ever started in it gets a new generation (`retired`), because a page of another size lies across those starts.
Slots are handed out only from granules that are backed (`grow`).

The cut of each slab outlives the process (`cuts`, which the owner of the allocator stores and empties). A new life withholds the
slabs of the one before and takes each over as a whole: `adopt` with the slots that are not free, or `release`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

SLAB_GRANULES = 4096  # 64 MiB
MIN_SLABS = 8


def slab_granules(total: int) -> int:
    """Granules of one slab in a pool of `total`."""
    return max(1, min(SLAB_GRANULES, total // MIN_SLABS or total))


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
        self.slab = slab_granules(total)
        self.cuts: list[tuple[int, int]] = []
        self._withheld: set[int] = set()
        self._next = 0
        self._empty: list[int] = []
        self._slabs: dict[int, _Slab] = {}
        self._partial: dict[int, dict[int, _Slab]] = {}

    def grow(self, backed: int) -> None:
        """The first `backed` granules have memory now."""
        self.backed = max(self.backed, min(backed, self.total))

    def withhold(self, firsts: Iterable[int]) -> None:
        """For a new allocator: an earlier life has cut these slabs (first granules); nothing of them is handed out as yet."""
        self._withheld = set(firsts)
        self._next = max(self._withheld, default=-self.slab) + self.slab
        self._empty = [first for first in range(0, self._next, self.slab) if first not in self._withheld][::-1]

    def adopt(self, first: int, size: int, used: Collection[int]) -> None:
        """Takes a withheld slab over in its old cut; `used` are the slots, at least one, that are not free."""
        self._withheld.remove(first)
        taken = set(used)
        free = [slot for slot in self._starts(first, size)[::-1] if slot not in taken]
        slab = self._slabs[first] = _Slab(first, size, free, len(taken))
        if free:
            self._partial.setdefault(size, {})[first] = slab

    def release(self, first: int) -> None:
        """A withheld slab is wholly free; the caller has raised the generations of its slots."""
        self._withheld.remove(first)
        self._empty.append(first)
        self.cuts.append((first, 0))

    def _starts(self, first: int, size: int) -> range:
        return range(first, first + self.slab // size * size, size)

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
        slab = self._slabs[first] = _Slab(first, size, list(self._starts(first, size)[::-1]))
        self.cuts.append((first, size))
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
        self.cuts.append((slab.first, 0))
        return self._starts(slab.first, slab.size)

    def free_granules(self) -> int:
        """Granules that no page occupies, of those that are backed."""
        return self.backed - sum(slab.used * slab.size for slab in self._slabs.values()) - len(self._withheld) * self.slab

    def withheld(self) -> int:
        """Slabs of an earlier life that are not taken over yet."""
        return len(self._withheld)

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
        seen |= self._withheld
        assert len(seen) == len(self._slabs) + len(self._withheld)
        assert not seen & set(self._empty) and len(set(self._empty)) == len(self._empty)
        assert len(seen) + len(self._empty) == self._next // self.slab
        assert self._next <= self.backed <= self.total
