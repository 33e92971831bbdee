"""Slot allocation, pure: which granules of the pool hold a page.

    pool │ slab │ slab │ slab │ …        slab: a run of granules cut into slots of one page size
         └ slot ┘                        slot number = number of its first granule

A slab belongs to one page size while any of its slots is used; wholly free slabs go back and may serve another size. Before that,
every slot that ever started in it gets a new generation (`retired`), because a page of another size lies across those starts.
Slots are handed out only from granules that are backed (`grow`). The last slab has what is left over.

The cut of each slab outlives the process (`cuts`, which the owner of the allocator stores and empties). A new life withholds the
slabs of the one before and takes each over as a whole: `adopt` with the slots that are not free, or `release`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pegaflow.services.tier.page import Page

SLAB_GRANULES = 4096  # 64 MiB
MIN_SLABS = 8


def slab_granules(total: int) -> int:
    """Granules of one slab in a pool of `total`."""
    return max(1, min(SLAB_GRANULES, total // MIN_SLABS or total))


@dataclass(slots=True, eq=False)
class Slab:
    """`pages`: slot → the page that has it; a used slot without one is held by somebody of an earlier life."""

    first: int
    size: int
    free: list[int]
    used: int = 0
    pages: dict[int, Page] = field(default_factory=dict)
    blocker: Page | None = None  # the page that kept the slab from being taken when it was last asked for


class SlotAllocator:
    """Owns the numbers, not the memory. `total`, `backed`, `used` and `ends` count granules; `ends` are those behind the last
    whole slot of each slab that is cut: of no use to anybody until it is cut anew."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.backed = 0
        self.used = 0
        self.ends = 0
        self.slab = slab_granules(total)
        self.cuts: list[tuple[int, int]] = []
        self._withheld: set[int] = set()
        self._next = 0
        self._empty: list[int] = []
        self._slabs: dict[int, Slab] = {}
        self._partial: dict[int, dict[int, Slab]] = {}
        self._spare: dict[int, int] = {}

    def grow(self, backed: int) -> None:
        """The first `backed` granules have memory now."""
        self.backed = max(self.backed, min(backed, self.total))

    # --- an earlier life -----------------------------------------------------------------------------------------------

    def withhold(self, firsts: Iterable[int]) -> None:
        """For a new allocator: an earlier life has cut these slabs (first granules); nothing of them is handed out as yet."""
        self._withheld = set(firsts)
        self._next = min(max(self._withheld, default=-self.slab) + self.slab, self.total)
        self._empty = [first for first in range(0, self._next, self.slab) if first not in self._withheld][::-1]

    def adopt(self, first: int, size: int, used: Collection[int]) -> None:
        """Takes a withheld slab over in its old cut; `used` are the slots, at least one, that are not free."""
        self._withheld.remove(first)
        taken = set(used)
        free = [slot for slot in self.starts(first, size)[::-1] if slot not in taken]
        slab = self._slabs[first] = Slab(first, size, free, len(taken))
        self.used += size * len(taken)
        self.ends += self._end(slab)
        self._spare[size] = self._spare.get(size, 0) + len(free)
        if free:
            self._partial.setdefault(size, {})[first] = slab

    def starts(self, first: int, size: int) -> range:
        """Where slots of `size` granules begin in the slab at `first`."""
        return range(first, first + self._length(first) // size * size, size)

    def release(self, first: int) -> None:
        """A withheld slab is wholly free; the caller has raised the generations of its slots."""
        self._withheld.remove(first)
        self._empty.append(first)
        self.cuts.append((first, 0))

    def withheld_granules(self) -> set[int]:
        """Granules of slabs of an earlier life that are not taken over yet."""
        return {granule for first in self._withheld for granule in range(first, first + self._length(first))}

    # --- slots -------------------------------------------------------------------------------------------------------

    def _length(self, first: int) -> int:
        return min(self.slab, self.total - first)

    def _end(self, slab: Slab) -> int:
        return self._length(slab.first) % slab.size

    @property
    def usable(self) -> int:
        """Granules that pages can have with the slabs cut as they are."""
        return self.total - self.ends

    def fits(self, size: int) -> bool:
        """Can a page of `size` granules ever get a slot?"""
        return 0 < size <= self.slab

    def take(self, size: int) -> int | None:
        """A free slot for a page of `size` granules; None when there is none without freeing something."""
        partial = self._partial.get(size)
        if not partial:
            if not self.fits(size) or self._open(size) is None:
                return None
            partial = self._partial[size]
        slab = next(iter(partial.values()))
        slot = slab.free.pop()
        slab.used += 1
        self.used += size
        self._spare[size] -= 1
        if not slab.free:
            del partial[slab.first]
        return slot

    def _open(self, size: int) -> Slab | None:
        at = next((i for i in range(len(self._empty) - 1, -1, -1) if self._length(self._empty[i]) >= size), None)
        if at is not None:
            first = self._empty.pop(at)
        elif (
            self._next < self.total and self._next + self._length(self._next) <= self.backed and size <= self._length(self._next)
        ):
            first = self._next
            self._next += self._length(first)
        else:
            return None
        slab = self._slabs[first] = Slab(first, size, list(self.starts(first, size)[::-1]))
        self.cuts.append((first, size))
        self.ends += self._end(slab)
        self._spare[size] = self._spare.get(size, 0) + len(slab.free)
        self._partial.setdefault(size, {})[first] = slab
        return slab

    def put(self, slot: int, page: Page) -> None:
        """This page has the slot; told for every used slot whose page may one day be evicted."""
        self._slabs[slot // self.slab * self.slab].pages[slot] = page

    def give(self, slot: int) -> range | None:
        """Takes a slot back. If its slab is wholly free now, returns the slab's slot starts: their generations must be raised."""
        slab = self._slabs[slot // self.slab * self.slab]
        slab.used -= 1
        slab.pages.pop(slot, None)
        slab.free.append(slot)
        self.used -= slab.size
        self._spare[slab.size] += 1
        if slab.used:
            self._partial.setdefault(slab.size, {})[slab.first] = slab
            return None
        starts = self.starts(slab.first, slab.size)
        del self._slabs[slab.first]
        self.ends -= self._end(slab)
        self._partial.get(slab.size, {}).pop(slab.first, None)  # a slab of one slot was never partial
        self._spare[slab.size] -= len(starts)
        self._empty.append(slab.first)
        self.cuts.append((slab.first, 0))
        return starts

    # --- looking -----------------------------------------------------------------------------------------------------

    def of(self, slot: int) -> Slab:
        """The slab that a used slot lies in."""
        return self._slabs[slot // self.slab * self.slab]

    def firsts(self) -> list[int]:
        """The slabs that are cut now, by their first granules."""
        return list(self._slabs)

    def pages(self, first: int) -> list[Page]:
        """The pages that begin in this slab, whatever their state; none where it is not cut any more."""
        slab = self._slabs.get(first)
        return [page for slot, page in slab.pages.items() if page.first_slot == slot] if slab is not None else []

    def others(self, size: int) -> Iterator[Slab]:
        """Slabs that serve another page size and would be large enough for `size`."""
        return (slab for slab in self._slabs.values() if slab.size != size and self._length(slab.first) >= size)

    def scattered(self, size: int) -> int:
        """Granules of free slots in slabs of other page sizes: free, but not for a page of this size."""
        return sum(other * count for other, count in self._spare.items() if other != size)

    def free_granules(self) -> int:
        """Granules that no page occupies, of those that are backed."""
        return self.backed - self.used - sum(self._length(first) for first in self._withheld)

    def slabs(self, size: int) -> int:
        """How many slabs serve this page size now."""
        return sum(slab.size == size for slab in self._slabs.values())

    def validate(self) -> None:
        seen: set[int] = set()
        spare: dict[int, int] = dict.fromkeys(self._spare, 0)
        for first, slab in self._slabs.items():
            assert first == slab.first and first % self.slab == 0
            assert slab.used > 0 and slab.used + len(slab.free) == len(self.starts(first, slab.size))
            assert len(set(slab.free)) == len(slab.free)
            assert bool(slab.free) == (first in self._partial.get(slab.size, {}))
            assert not set(slab.pages) & set(slab.free) and len(slab.pages) <= slab.used
            assert all(slot in page.slots for slot, page in slab.pages.items())
            spare[slab.size] += len(slab.free)
            seen.add(first)
        assert spare == self._spare, "the count of free slots is wrong"
        assert self.ends == sum(map(self._end, self._slabs.values()))
        assert self.used == sum(slab.used * slab.size for slab in self._slabs.values())
        assert not seen & self._withheld
        seen |= self._withheld
        assert not seen & set(self._empty) and len(set(self._empty)) == len(self._empty)
        assert len(seen) + len(self._empty) == -(-self._next // self.slab)
        assert self._next <= self.backed <= self.total
