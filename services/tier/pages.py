"""Pages of this tier, pure: one object per key, the index, the slots, and what the catalogue hears of it.

Only PENDING and SEALED pages are announced, and what the next level has (`below`). A slot is free again when its page is out of
the index, no process may write it any more and no job or lease refers to it (page.py has the states).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from pegaflow.common.slot_table import FREE, NO_CHECKSUM, SlotEntry, SlotState
from pegaflow.common.wire.messages import catalogue
from pegaflow.common.wire.messages.catalogue import CatalogueBeat
from pegaflow.common.wire.messages.inspection import Step
from pegaflow.services.tier.announced import Announced, Entry
from pegaflow.services.tier.chronicle import Chronicle
from pegaflow.services.tier.commands import Command, Cut, Publish, Table
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.eviction.space import NOBODY, Space
from pegaflow.services.tier.page import Page, PageState, granules

TOPIC = b"c"
KEEP_S = 10.0
NAMESPACE_BYTES = 16
_DEFAULTS = SpaceOptions()


class Pages:
    """Index and slots; `space` says which go. Commands go to `out`, in the order in which they must be carried out."""

    def __init__(
        self,
        total_granules: int,
        out: list[Command],
        counts: dict[str, int],
        options: SpaceOptions = _DEFAULTS,
        floor: int = 0,
        history: int = 0,
    ) -> None:
        self._out, self._counts, self._floor = out, counts, floor
        self.chronicle = Chronicle(history)
        self.grants = itertools.count(floor + 1)
        """Numbers of grants and fetches, of which no two in any life of this pool are the same."""
        self.space = Space(total_granules, options, self._evicted, counts)
        self.space.turn = max(floor, self.space.turn)  # above the age of everything that an earlier life leaves
        self.allocator = self.space.allocator
        self.index: dict[bytes, Page] = {}
        self.aside: set[Page] = set()  # STALE and DOOMED pages whose slots are not free yet
        self.held: dict[int, int] = {}  # slots without a page that somebody may still write, and their granules
        self._generations: dict[int, int] = {}
        self.below: dict[bytes, int] = {}
        """Keys on the next level, and their sizes."""
        self.below_by: Counter[bytes] = Counter()
        """How many of them each namespace has."""
        self.announced = Announced()
        self.unverified = 0
        """Pages of the index that an earlier life sealed and that are not verified yet."""
        self.arrived: Callable[[bytes], None] | None = None
        """Told of each key that is here, in memory or below, from now on. One listener: it sets it."""

    # --- slots -------------------------------------------------------------------------------------------------------

    def reserve(
        self,
        key: bytes,
        state: PageState,
        lengths: tuple[int, ...],
        request: str = "",
        session: int = 0,
        parent: Page | None = None,
        *,
        spare: bool = False,
    ) -> Page | None:
        """Slots for a new page that continues `parent`, evicting older ones if need be and not `spare`; None: no space.

        Pages of the same request are not evicted for it.
        """
        slots = self.space.take(key[:16], lengths, (session, request) if request else NOBODY, spare=spare)
        if len(slots) < len(lengths):
            for slot in slots:
                self._give(slot)
            self._counts["no_space"] += not spare
            return None
        if self.allocator.cuts:
            self._store_cuts()
        page = Page(key, state, slots, [self._raise(slot) for slot in slots], lengths)
        page.request, page.session = request, session
        self.index[key] = page
        self.space.put(page)
        self.space.follows(page, parent)
        if state is PageState.PENDING:
            self._announce(page.key)
        return page

    def _raise(self, slot: int) -> int:
        # An earlier life's generations are below the floor: a slot's own is known only if something of that life is in it.
        generation = max(self._generations.get(slot, 0), self._floor) + 1
        self._generations[slot] = generation
        return generation

    def _give(self, slot: int) -> None:
        retired = self.allocator.give(slot)
        if retired is not None:  # the slab may serve another page size: see slots.py
            for start in retired:
                self._out.append(Table(start, self._raise(start), FREE))
            self._store_cuts()

    def _store_cuts(self) -> None:
        """Says in the slot table how slabs are cut: before any entry of a new cut, after all entries of an old one."""
        self._out.extend(Cut(first, size) for first, size in self.allocator.cuts)
        self.allocator.cuts.clear()

    def free_if_done(self, page: Page) -> None:
        """Gives the slots back once nobody can touch them and nobody can find them."""
        if page.state is not PageState.DOOMED or page.refs or not page.slots or any(page.writers):
            return
        self.aside.discard(page)
        for slot in page.slots:
            self._out.append(Table(slot, 0, FREE, bool(page.checksums)))
            self._give(slot)
        self.space.freed(page)
        page.slots = []

    # --- states ------------------------------------------------------------------------------------------------------

    def store_granted(self, page: Page, holders: Sequence[int] = ()) -> None:
        """Generation first, then the entry: before anybody hears of the grant. `holders`: who may write, by shard."""
        state = SlotState.READING if page.state is PageState.FETCHING else SlotState.GRANTED
        self._store(page, state, True, holders)

    def quarantine(self, page: Page) -> None:
        """A READ that was given up may still land: the slots are not free, whatever else happens."""
        self._store(page, SlotState.QUARANTINED)

    def _store(self, page: Page, state: SlotState, raised: bool = False, holders: Sequence[int] = ()) -> None:
        shards = len(page.slots)
        for shard, slot in enumerate(page.slots):
            entry = SlotEntry(
                state,
                page.key,
                shard,
                shards,
                page.rows,
                page.lengths[shard],
                page.order,
                holders[shard] if holders else 0,
                page.checksums[shard] if page.checksums else NO_CHECKSUM,
                page.grant,
            )
            self._out.append(Table(slot, page.generations[shard] if raised else 0, entry))

    def seal(self, page: Page, checksums: Sequence[bytes]) -> bool:
        """All bytes are in and checksummed. False: another copy was first, this one goes."""
        there = self.index.get(page.key)
        if there is not page and there is not None:
            if there.state is PageState.SEALED:
                self._counts["duplicates"] += 1
                self.chronicle.one(Step.DUPLICATE, page.key)
                self.doom(page)
                return False
            # It lost the race; its writers still own its slots.
            there.state = PageState.STALE if there.state is PageState.PENDING else PageState.DOOMED
            self.aside.add(there)
            self.space.replaces(page, there)
        self.aside.discard(page)
        self.index[page.key] = page
        page.state = PageState.SEALED
        page.checksums = list(checksums)
        self._store(page, SlotState.SEALED)
        self.space.sealed(page)
        self._announce(page.key)
        if self.arrived is not None:
            self.arrived(page.key)
        return True

    def adopt(self, page: Page, until: float) -> bool:
        """An earlier life sealed it, its slots are taken; the caller tells `space.hold`. False: the key has a page already."""
        if page.key in self.index:
            return False
        page.state, page.verified, page.hold_until = PageState.SEALED, False, until
        page.unwritten.clear()
        self._generations.update(zip(page.slots, page.generations, strict=True))
        self.index[page.key] = page
        self.unverified += 1
        self.space.put(page)
        self.space.adopted(page)
        self._announce(page.key)
        if self.arrived is not None:
            self.arrived(page.key)
        return True

    def verify(self, page: Page) -> None:
        """A sealed page of the index has the bytes it was sealed with."""
        self.unverified -= not page.verified
        page.verified = True

    def spoil(self, page: Page) -> None:
        """The bytes are not those that were sealed: gone, and whoever copies from these slots will see that they moved."""
        self.chronicle.one(Step.BAD_CHECKSUM, page.key, ("memory",) if page.verified else ("left by an earlier life",))
        if page.slots:
            page.generations = [self._raise(slot) for slot in page.slots]
            page.first_generation = page.generations[0]
            self._store(page, SlotState.QUARANTINED, raised=True)
        self.drop(page)

    def hold(self, slot: int, size: int, generation: int) -> None:
        """A slot of an earlier life that somebody may still write; it is taken in the allocator."""
        self.held[slot] = size
        self._generations[slot] = generation

    def let_go(self, slot: int) -> None:
        """The slot of an earlier life is quiet: nobody writes it, nothing in it is wanted."""
        self.held.pop(slot, None)
        self._out.append(Table(slot, 0, FREE))
        self._give(slot)

    def retire(self, first: int, starts: Sequence[int]) -> None:
        """A slab of an earlier life that is wholly free: whoever still copies out of its old cut will see that it moved."""
        for start in starts:
            self._out.append(Table(start, self._raise(start), FREE))
        self.allocator.release(first)
        self._store_cuts()

    def stale(self, page: Page) -> None:
        """The promise is not believed any more; who holds the slots may still write them."""
        self._leave_index(page)
        page.state = PageState.STALE
        self.aside.add(page)

    def sealed_page(self, key: bytes) -> Page | None:
        page = self.index.get(key)
        return page if page is not None and page.state is PageState.SEALED else None

    def doom(self, page: Page) -> None:
        """The page will not be (or is no longer) visible; its slots go when nobody can touch them."""
        if page.state is not PageState.DOOMED:
            self._leave_index(page)
            page.state = PageState.DOOMED
            self.aside.add(page)
        self.free_if_done(page)

    def _evicted(self, page: Page) -> None:
        self.chronicle.one(Step.EVICTED, page.key, self.space.reason)
        self.drop(page)

    def drop(self, page: Page) -> None:
        """A sealed page is evicted or was found bad."""
        self._counts["dropped"] += 1
        self.doom(page)

    def _leave_index(self, page: Page) -> None:
        if self.index.get(page.key) is page:
            del self.index[page.key]
            self.unverified -= not page.verified
            self._announce(page.key)
        self.space.left(page)

    # --- catalogue ---------------------------------------------------------------------------------------------------

    def _entry(self, key: bytes) -> Entry | None:
        """State, level and size of a key for the catalogue: a copy on disk hides a promise, and is hidden by memory."""
        page = self.index.get(key)
        if page is not None and page.state is PageState.SEALED:
            return catalogue.SEALED, catalogue.MEMORY, page.size
        if key in self.below:
            return catalogue.SEALED, catalogue.DISK, self.below[key]
        if page is not None and page.state is PageState.PENDING:
            return catalogue.PENDING, catalogue.MEMORY, page.size
        return None

    def _announce(self, key: bytes) -> None:
        """Something happened to this key."""
        self.announced.set(key, self._entry(key))

    def store_below(self, key: bytes, size: int) -> None:
        """The key is on the next level; who looks for it finds it there when it is not in memory."""
        self.below_by[key[:NAMESPACE_BYTES]] += key not in self.below
        self.below[key] = size
        self._announce(key)
        if self.arrived is not None:
            self.arrived(key)

    def drop_below(self, key: bytes) -> None:
        """It is not there any more."""
        if self.below.pop(key, None) is not None:
            name = key[:NAMESPACE_BYTES]
            self.below_by[name] -= 1
            if not self.below_by[name]:
                del self.below_by[name]
            self._announce(key)

    def flush(self) -> list[bytes]:
        """Publishes what changed. Returns the keys, for those who wait for them."""
        changed, deltas = self.announced.flush()
        self._out.extend(Publish(TOPIC, delta) for delta in deltas)
        return changed

    def beat(self) -> CatalogueBeat:
        return self.announced.beat()

    # --- checks ------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """`aside` and `index` together are all pages that have slots."""
        pages = [*self.index.values(), *self.aside]
        self.space.validate(pages)
        used: set[int] = set()
        for page in pages:
            for slot, length in zip(page.slots, page.lengths, strict=True):
                cover = set(range(slot, slot + granules(length)))
                assert not cover & used, f"slot {slot} is used twice"
                used |= cover
            assert page.refs >= 0
        for slot, size in self.held.items():
            cover = set(range(slot, slot + size))
            assert not cover & used, f"slot {slot} is used and held"
            used |= cover
        assert not used & self.allocator.withheld_granules()
        assert len(used) == self.allocator.used, "slots leaked"
        for key, page in self.index.items():
            assert page.key == key
            assert page.state in (PageState.PENDING, PageState.SEALED, PageState.FETCHING)
            assert page.verified or page.state is PageState.SEALED
            if page.state is PageState.SEALED:
                assert not any(page.writers) and not page.unwritten and len(page.checksums) == len(page.slots)
        assert self.unverified == sum(not page.verified for page in self.index.values())
        assert self.below_by == Counter(key[:NAMESPACE_BYTES] for key in self.below)
        keys = self.index.keys() | self.below.keys()
        self.announced.validate({key: entry for key in keys if (entry := self._entry(key)) is not None})
