"""Making room, pure: which pages go so that a page of a given size gets a slot.

    same page size     one page of another namespace, or of the own one: its slots are free
    other page size    a whole slab: all its pages go, and with them what continues those pages

In which order is a matter of shares (shares.py). Who is below its share takes from those above theirs first, then its own oldest
page; who is above, its own first. Free slots that lie scattered over slabs of other sizes are no reason to refuse a page: then
the cheapest slab goes, whosever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pegaflow.services.tier.eviction import lineage
from pegaflow.services.tier.eviction.policy import Policy
from pegaflow.services.tier.eviction.shares import Namespace, Shares
from pegaflow.services.tier.page import Page
from pegaflow.services.tier.slots import Slab, SlotAllocator

NEAR = 4  # pages that go with a slab, in slots of that slab: more is asked for only if nothing cheaper is there
CHOICE = 8  # slabs that could go, of which the cheapest does
CHEAP = 0.5  # of a slab's granules


@dataclass(slots=True, eq=False)
class Group:
    """Pages of one namespace and one shape. Replicas of other tiers' pages go first: to fetch costs less than to compute."""

    space: Namespace
    sizes: frozenset[int]
    replicas: Policy
    own: Policy
    pages: int = 0


class Room:
    """`held(page)`: may it not go? `evict(page)`: it goes, and its slots are free at once."""

    def __init__(
        self, allocator: SlotAllocator, shares: Shares, held: Callable[[Page], bool], evict: Callable[[Page], None]
    ) -> None:
        self._allocator, self._shares, self._held, self._evict = allocator, shares, held, evict
        self.groups: dict[tuple[bytes, tuple[int, ...]], Group] = {}
        self.guarded: list[Page] = []  # found held while victims were looked for: the owner places them again

    def make(self, space: Namespace, size: int, need: int) -> bool:
        """Frees one slot or more for a page of this namespace, `need` granules in all; False: there is nothing that may go."""
        # PERF: this is asked for each page that a full pool takes in; where one model is alone, there is nothing to weigh.
        rich = [other for other in self._shares.by_name.values() if other is not space and self._shares.above(other) > 0]
        if space.used + need <= self._shares.share(space) and (
            (rich and (self._slot_of_others(rich, size) or self._slab(size, rich.__contains__)))
            or self._scattered(size, CHEAP * self._allocator.slab)
        ):
            return True
        return (
            self._slot_of(space, size)
            or self._slot_of_others(rich, size)
            or self._slab(size, lambda other: other is space or other in rich)
            or self._scattered(size, None)
        )

    # --- a slot ------------------------------------------------------------------------------------------------------

    def oldest(self, space: Namespace, size: int = 0) -> Page | None:
        """The next of this namespace to go; `size`: that frees a slot of so many granules."""
        for group in self.groups.values():
            if group.space is space and (not size or size in group.sizes):
                page = self._victim(group)
                if page is not None:
                    return page
        return None

    def _victim(self, group: Group) -> Page | None:
        for policy in (group.replicas, group.own):
            while (page := policy.victim()) is not None:
                if not self._held(page):
                    return page
                policy.hold(page)
                self.guarded.append(page)
        return None

    def _slot_of(self, space: Namespace, size: int) -> bool:
        page = self.oldest(space, size)
        if page is not None:
            self._evict(page)
        return page is not None

    def _slot_of_others(self, others: list[Namespace], size: int) -> bool:
        return any(self._slot_of(other, size) for other in sorted(others, key=self._shares.above, reverse=True))

    # --- a slab ------------------------------------------------------------------------------------------------------

    def _scattered(self, size: int, most: float | None) -> bool:
        """A slab of another size, whosever it is, if so much is free that only the cut is in the way."""
        if self._allocator.scattered(size) < size:
            return False
        return self._slab(size, lambda other: True, most)

    def _slab(self, size: int, whose: Callable[[Namespace], bool], most: float | None = None) -> bool:
        """Empties the cheapest slab of another size that holds such namespaces' pages only, with `most` granules."""
        for far in (False, True):
            choice: list[tuple[int, int, list[Page]]] = []
            postponed = False
            for slab in self._likely(size, whose):
                if self._blocked(slab, whose):
                    continue
                pages = self._with_children(slab, None if far else NEAR * (slab.used + len(slab.free)))
                if pages is None:
                    postponed = not far
                    continue
                if pages:
                    cost = sum(page.granules for page in pages)
                    if most is None or cost <= most:
                        choice.append((cost, max(page.used_at for page in pages), pages))
                if len(choice) == CHOICE:
                    break
            if choice:
                for page in min(choice, key=lambda one: one[:2])[2]:
                    self._evict(page)
                return True
            if not postponed:
                return False
        return False

    def _likely(self, size: int, whose: Callable[[Namespace], bool]) -> Iterator[Slab]:
        """Slabs of other sizes, those with pages that would go soon anyway first."""
        first: dict[Slab, None] = {}
        for group in self.groups.values():
            if size not in group.sizes and whose(group.space) and (page := self._victim(group)) is not None:
                first.update(dict.fromkeys(map(self._allocator.of, page.slots)))
        wanted = dict.fromkeys(self._allocator.others(size))
        yield from (slab for slab in first if slab in wanted)
        yield from (slab for slab in wanted if slab not in first)

    def _blocked(self, slab: Slab, whose: Callable[[Namespace], bool]) -> bool:
        blocker = slab.blocker
        if blocker is not None and self._held(blocker) and any(slab.pages.get(slot) is blocker for slot in blocker.slots):
            return True  # PERF: what stood in the way the last time is asked first
        slab.blocker = None
        if len(slab.pages) < slab.used:
            return True
        for page in slab.pages.values():
            if self._held(page):
                slab.blocker = page
                return True
            if not whose(page.group.space):
                return True
        return False

    def _with_children(self, slab: Slab, limit: int | None) -> list[Page] | None:
        """All pages of a slab and what continues them, children first; empty: one of them is held; None: more than `limit`."""
        found: dict[Page, None] = {}
        for page in slab.pages.values():
            if page in found:
                continue
            below, todo = [], [page]
            while todo:
                one = todo.pop()
                if self._held(one):
                    return []
                below.append(one)
                if limit is not None and len(found) + len(below) > limit:
                    return None
                todo.extend(lineage.children(one))
            found.update(dict.fromkeys(reversed(below)))
        return list(found)

    def validate(self) -> None:
        for group in self.groups.values():
            group.replicas.validate()
            group.own.validate()
