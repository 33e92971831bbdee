"""The pool's space, pure: who has how much of it, which pages may go, and who goes next.

    take ──▶ slots of a new page, older ones evicted if need be (room.py); None: no space, at once
    touch ─▶ used: goes later            hold, keep ─▶ may not go for a while        look ─▶ not held any more, perhaps

A page may go when it is sealed, nobody refers to it, no time holds it, and no page that is here continues it. Only such pages are
in the queues, so that a pool full of leased or kept pages costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.services.tier.eviction import lineage
from pegaflow.services.tier.eviction.holds import Holds
from pegaflow.services.tier.eviction.policy import POLICIES
from pegaflow.services.tier.eviction.room import Group, Room
from pegaflow.services.tier.eviction.shares import Namespace, Shares, SpaceOptions
from pegaflow.services.tier.eviction.touched import Touched
from pegaflow.services.tier.page import Page, PageState, shape
from pegaflow.services.tier.slots import SlotAllocator

TRIM_PAGES = 256  # evicted ahead of need in one tick, at most
DUE_PAGES = 1024  # whose time is over, looked at in one event (or as many as are needed for a slot)
TOUCHED_PAGES = 8192  # put in order in one event, of those that were used
NOBODY = (0, "")
FOR_ROOM, OVER_QUOTA, AHEAD = "room", "quota", "watermark"


class Space:
    """Owns the allocator. `drop(page)` takes a page out of the index; its slots come back through `freed`.

    `turn` and `now` are the tier's: the number and the time of the event that is being handled.
    """

    def __init__(self, total: int, options: SpaceOptions, drop: Callable[[Page], None], counts: dict[str, int]) -> None:
        self._options, self._drop, self._counts = options, drop, counts
        self.allocator = SlotAllocator(total)
        self.shares = Shares(self.allocator, options)
        self._room = Room(self.allocator, self.shares, self._spared, self._evict)
        self._holds = Holds()
        self.turn, self.now = 1, 0.0
        self._touched = Touched()
        self._asker = NOBODY
        self._why = FOR_ROOM
        self._trimming = False
        self._leaving: dict[Page, None] = {}
        self._leaving_granules = 0
        self.spill: Callable[[Page], bool | None] | None = None
        """The next level: offered each page that is evicted ahead of need. True: it writes the page out and calls `spilled`;
        None: it cannot now, but soon."""
        self.missed: Callable[[Page], None] | None = None
        """The next level: told of each page that is evicted."""

    # --- slots -------------------------------------------------------------------------------------------------------

    def take(self, name: bytes, lengths: tuple[int, ...], asker: tuple[int, str] = NOBODY, *, spare: bool = False) -> list[int]:
        """Slots for one page of a namespace, one per length in bytes; fewer than asked for: no space, and they are the caller's.

        `asker` is a session and a request: a save never evicts pages of its own request. Ends with `put`, or `free` per slot.
        `spare`: nothing is evicted for it, now or ahead of need.
        """
        self.settle()
        space = self.shares.of(name)
        _, sizes, need = shape(lengths)
        slots: list[int] = []
        self._asker = asker
        if self._is_spare(space, need) if spare else self._within_quota(space, need):
            for size in sizes:
                while (slot := self.allocator.take(size)) is None and self.allocator.fits(size) and not spare:
                    if not self._room.make(space, size, need) and not self._catch_up():
                        break
                if slot is None:
                    break
                slots.append(slot)
        self._asker = NOBODY
        if self._room.guarded:
            for page in self._room.guarded:
                self.place(page)
            self._room.guarded.clear()
        if len(slots) < len(sizes):
            space.refused += 1
        return slots

    def _is_spare(self, space: Namespace, need: int) -> bool:
        """So much may be taken without a page going for it."""
        full = self._options.evict_high * self.allocator.usable
        return space.used + need <= space.quota and self.allocator.used + need <= full

    def _within_quota(self, space: Namespace, need: int) -> bool:
        """A namespace at its quota evicts its own pages, or gets nothing."""
        quota = space.quota
        while space.used + need > quota:
            page = self._room.oldest(space) if need <= quota else None
            if page is None:
                if need <= quota and self._catch_up():
                    continue
                return False
            self._why = OVER_QUOTA if quota < self.allocator.total else FOR_ROOM
            self._evict(page)
            self._why = FOR_ROOM
        return True

    @property
    def reason(self) -> tuple[str | int, ...]:
        """Of the eviction that is under way: why, and for which session and request (0: for a fetch, a read or nobody)."""
        session, request = self._asker
        return self._why, session, request

    def put(self, page: Page) -> None:
        """The slots have become this page."""
        for slot in page.slots:
            self.allocator.put(slot, page)
        key = (page.namespace, page.lengths)
        group = self._room.groups.get(key)
        if group is None:
            make = POLICIES[self._options.policy]
            sizes = frozenset(shape(page.lengths).slots)
            group = self._room.groups[key] = Group(self.shares.of(page.namespace), sizes, make(), make())
        page.group = group
        group.pages += 1
        group.space.pages += 1
        group.space.used += page.granules

    def freed(self, page: Page) -> None:
        """The page's slots have been given back."""
        group: Group = page.group
        group.pages -= 1
        group.space.pages -= 1
        group.space.used -= page.granules
        if not group.pages:
            del self._room.groups[page.namespace, page.lengths]
            self.shares.forget(group.space)

    def _evict(self, page: Page) -> None:
        self._counts["evicted"] += 1
        page.group.space.evicted += 1
        if self.missed is not None:
            self.missed(page)
        self._drop(page)

    # --- pages -------------------------------------------------------------------------------------------------------

    def sealed(self, page: Page) -> None:
        page.used_at = self.turn
        self._policy(page).admit(page)
        self.place(page)

    def adopted(self, page: Page) -> None:
        """Sealed by an earlier life; the caller has set `used_at`, below every turn of this one. Its chain is learnt by use."""
        self._policy(page).admit(page)
        self.place(page)

    def left(self, page: Page) -> None:
        """The page is not in the index any more, or not the one in the index."""
        if page.state is PageState.SEALED:
            self._policy(page).remove(page)
        self._unkeep(page)  # also a parent that was kept while its bytes had not come yet
        parent = lineage.leave(page)
        if parent is not None:
            self.place(parent)

    def follows(self, page: Page, parent: Page | None) -> None:
        """This page continues that one, unless that one has left meanwhile (a chain's end is remembered by those who save)."""
        if parent is not None and parent.state is not PageState.DOOMED and lineage.link(page, parent):
            self.place(parent)

    def replaces(self, page: Page, old: Page) -> None:
        """Two pages of one key: this one is in the index from now on."""
        lineage.replace(old, page)

    @staticmethod
    def _policy(page: Page) -> Any:
        return page.group.replicas if page.replica else page.group.own

    def _held(self, page: Page) -> bool:
        return page.state is not PageState.SEALED or page.refs > 0 or page.hold_until > self.now or page.kept_until > self.now

    def _spared(self, page: Page) -> bool:
        """Held, or of the request that is given slots just now."""
        return self._held(page) or (page.request != "" and self._asker == (page.session, page.request))

    def place(self, page: Page) -> None:
        """Puts a page where it belongs, into its queue or out of it."""
        if page.state is not PageState.SEALED:
            return
        if page.child is None and not self._held(page):
            self._policy(page).release(page)
        elif page.age:
            self._policy(page).hold(page)

    # --- use ---------------------------------------------------------------------------------------------------------

    def touch(self, pages: Sequence[Page], chain: bool = True) -> None:
        """These pages were used or are held; `chain`: each continues the one before. The sequence is not changed any more."""
        # PERF: the order matters only when something is evicted, so a lookup does not wait for it.
        self._note(self.turn, pages, chain)

    def look(self, pages: Sequence[Page]) -> None:
        """These pages may not be held any more."""
        self._note(0, pages, False)

    def _note(self, turn: int, pages: Sequence[Page], chain: bool) -> None:
        self._touched.add(turn, pages, chain)
        if len(self._touched) > TOUCHED_PAGES:  # not all of it is left to whoever comes next
            self._settle_touched()

    def settle(self) -> None:
        """Brings the queues up to date; where very much has happened, by a part of it."""
        if self._touched:
            self._settle_touched()
        if self._holds.overdue(self.now):
            self._release_due()

    def _catch_up(self) -> bool:
        """Nothing may go, as far as is known: is there more to know? False: the queues are up to date."""
        if self._touched:
            self._settle_touched()
            return True
        return self._release_due()

    def _release_due(self) -> bool:
        """Pages whose time is over may go. False: there are none."""
        over = self._holds.due(self.now, DUE_PAGES)
        for page in over:
            if page.kept_until <= self.now:
                self._unkeep(page)
            self.place(page)
        return bool(over)

    def _settle_touched(self) -> None:
        budget = TOUCHED_PAGES
        while budget > 0 and (part := self._touched.take(budget)) is not None:
            turn, pages, chain, before = part
            budget -= len(pages)
            before = before if before is not None and before.state is PageState.SEALED else None
            for page in pages:
                if page.state is PageState.SEALED:
                    if turn:
                        self._policy(page).touch(page, turn)
                    if chain and page.parent is None and before is not None and lineage.link(page, before):
                        self.place(before)
                    self.place(page)
                    before = page
                else:
                    before = None

    # --- keeping -----------------------------------------------------------------------------------------------------

    def hold(self, pages: Sequence[Page], until: float) -> None:
        """An intent was told `have`: these pages stay until then."""
        for page in pages:
            page.hold_until = max(page.hold_until, until)
        self._holds.add(pages, self.now)

    def keep(self, pages: Iterable[Page], until: float) -> None:
        """Sealed pages, and the pages they continue, stay until then. Raises `keep_full` and changes nothing."""
        wanted: dict[Page, None] = {}
        for page in pages:
            one: Page | None = page
            while one is not None and one not in wanted:
                wanted[one] = None
                one = one.parent
        limit = int(self._options.keep_share * self.allocator.backed)
        while self.kept + (more := sum(page.granules for page in wanted if not page.kept_until)) > limit:
            if self._release_due():
                continue
            raise RemoteError(
                ErrorCode.KEEP_FULL,
                f"{self.kept * GRANULE} bytes are kept and these pages are {more * GRANULE} more; at most {limit * GRANULE}"
                f" ({self._options.keep_share:g} of the pool) may be kept",
            )
        for page in wanted:
            if not page.kept_until:
                page.group.space.kept += page.granules
            page.kept_until = max(page.kept_until, until)
        self._holds.add(wanted, self.now)
        self.look(list(wanted))

    def unkeep(self, pages: Iterable[Page]) -> None:
        """These pages may go again; those that they continue stay until their own time."""
        found = list(pages)
        for page in found:
            self._unkeep(page)
        self.look(found)

    def _unkeep(self, page: Page) -> None:
        if page.kept_until:
            page.kept_until = 0.0
            page.group.space.kept -= page.granules

    @property
    def kept(self) -> int:
        """Granules that are kept."""
        return sum(space.kept for space in self.shares.by_name.values())

    # --- ahead of need -----------------------------------------------------------------------------------------------

    @property
    def trimming(self) -> bool:
        """Whether the next tick has pages to evict, or very many to put in order."""
        return self._trimming or len(self._touched) > TOUCHED_PAGES or self._holds.overdue(self.now)

    def retune(self, options: SpaceOptions) -> None:
        """Other watermarks and quotas from now on; `policy` stays what it was."""
        self._options = replace(options, policy=self._options.policy)
        self.shares.retune(self._options)

    def tick(self) -> None:
        """Above the high watermark: evicts down to the low one, some pages at a time, so that grants find free slots."""
        self.settle()
        if self._options.evict_high >= 1 or self.allocator.backed < self.allocator.total:
            return
        used = self.allocator.used - self._leaving_granules
        usable = self.allocator.usable
        mark = self._options.evict_low if self._trimming else self._options.evict_high
        self._trimming = used > mark * usable
        budget = TRIM_PAGES
        while self._trimming and budget and used > self._options.evict_low * usable:
            page = self._surplus()
            if page is None:
                break
            spilling = self.spill(page) if self.spill is not None else False
            if spilling is None:
                break
            budget -= 1
            used -= page.granules
            if spilling:
                page.refs += 1
                self._leaving[page] = None
                self._leaving_granules += page.granules
                self.place(page)
                parent = lineage.leave(page)  # which is next, without waiting for the write
                if parent is not None:
                    self.place(parent)
            else:
                self._evict_ahead(page)
        self._room.guarded.clear()

    def _evict_ahead(self, page: Page) -> None:
        self._why = AHEAD
        self._evict(page)
        self._why = FOR_ROOM

    def _surplus(self) -> Page | None:
        """The next page to go when nobody asks for its place: of the namespace that is farthest above its share."""
        spaces = sorted(self.shares.by_name.values(), key=self.shares.above, reverse=True)
        return next((page for space in spaces if (page := self._room.oldest(space)) is not None), None)

    def spilled(self, page: Page) -> None:
        """The next level has the page, or has failed: it leaves memory unless somebody uses it again."""
        del self._leaving[page]
        self._leaving_granules -= page.granules
        page.refs -= 1
        if page.state is PageState.SEALED and page.child is None and not self._held(page):
            self._evict_ahead(page)
        self.place(page)

    # --- looking -----------------------------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """For the dump: usage in bytes."""
        return {
            "policy": self._options.policy,
            "used_bytes": self.allocator.used * GRANULE,
            "kept_bytes": self.kept * GRANULE,
            "held_for_a_time": self._holds.count,
            "leaving": len(self._leaving),
            "namespaces": self.shares.view(),
        }

    def validate(self, pages: Sequence[Page]) -> None:
        """`pages`: all that have slots."""
        self.allocator.validate()
        self._room.validate()
        self._holds.validate()
        waiting = self._touched.pages()
        for space in self.shares.by_name.values():
            mine = [page for page in pages if page.group.space is space]
            assert space.pages == len(mine)
            assert space.used == sum(page.granules for page in mine)
            assert space.kept == sum(page.granules for page in mine if page.kept_until)
        assert sum(space.pages for space in self.shares.by_name.values()) == len(pages), "a page without a namespace"
        assert self.allocator.free_granules() + self.allocator.used <= self.allocator.backed
        for page in pages:
            assert not page.kept_until or page.timed
            assert all(child.parent is page and child.namespace == page.namespace for child in lineage.children(page))
            if page.state is not PageState.SEALED:
                assert not page.age, "a page that is not sealed waits for its eviction"
            elif page not in waiting and not (page.timed and self._late(page)):
                may = page.child is None and not self._held(page)
                assert bool(page.age) == may, f"page {page.key.hex()} may go: {may}, is in a queue: {bool(page.age)}"

    def _late(self, page: Page) -> bool:
        """Its time has run out since the queues were last settled."""
        return max(page.hold_until, page.kept_until) <= self.now
