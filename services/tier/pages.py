"""Pages of this tier, pure: one object per key, the index, the slots, recency, and what the catalogue hears of it.

Only PENDING and SEALED pages are announced. A slot is free again when its page is out of the index, no process may write it any
more and no job or lease refers to it (page.py has the states).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from pegaflow.common.pool import SlotEntry, SlotState
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import DIGEST_MOD, entry_digest
from pegaflow.common.wire.messages import catalogue
from pegaflow.common.wire.messages.catalogue import CatalogueBeat, Delta
from pegaflow.services.tier.commands import Command, Publish, Table
from pegaflow.services.tier.page import Page, PageState, granules
from pegaflow.services.tier.slots import SlotAllocator

TOPIC = b"c"
KEEP_S = 10.0
_MEMORY = 0


class Pages:
    """Index, slots and recency. Commands go to `out`, in the order in which they must be carried out."""

    def __init__(self, total_granules: int, out: list[Command], counts: dict[str, int]) -> None:
        self._out, self._counts = out, counts
        self.allocator = SlotAllocator(total_granules)
        self.index: dict[bytes, Page] = {}
        self.aside: set[Page] = set()  # STALE and DOOMED pages whose slots are not free yet
        self._recency: dict[tuple[int, ...], OrderedDict[bytes, Page]] = {}
        self._generations: dict[int, int] = {}
        self._touched: list[Sequence[Page]] = []
        self._announced: dict[bytes, tuple[int, int]] = {}
        self._changes: dict[bytes, tuple[int, int]] = {}
        self.digest = 0
        self.sealed = 0
        self.pending = 0
        self.head = 0

    # --- slots -------------------------------------------------------------------------------------------------------

    def reserve(
        self, key: bytes, state: PageState, lengths: tuple[int, ...], now: float, request: str = "", session: int = 0
    ) -> Page | None:
        """Slots for a new page, evicting older ones if need be; None: no space. `request` pages are not evicted for their own."""
        slots: list[int] = []
        for length in lengths:
            slot = self._take(granules(length), lengths, now, request, session)
            if slot is None:
                for taken in slots:
                    self._give(taken)
                self._counts["no_space"] += 1
                return None
            slots.append(slot)
        page = Page(key, state, slots, [self._raise(slot) for slot in slots], lengths)
        page.request, page.session = request, session
        self.index[key] = page
        if state is PageState.PENDING:
            self._announce(page)
        return page

    def _raise(self, slot: int) -> int:
        generation = self._generations.get(slot, 0) + 1
        self._generations[slot] = generation
        return generation

    def _take(self, size: int, lengths: tuple[int, ...], now: float, request: str, session: int) -> int | None:
        while (slot := self.allocator.take(size)) is None:
            if not any(self._evict(shape, now, request, session) for shape in self._victims(size, lengths)):
                return None
        return slot

    def _victims(self, size: int, lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Whose pages may go for a slot of `size` granules: the own shape's first, then others with such slots.

        A size that owns no slab yet takes one from the shapes that hold most, page by page.
        """
        others = [shape for shape in self._recency if shape != lengths]
        same = [shape for shape in others if size in map(granules, shape)]
        if same or not self.allocator.fits(size) or self.allocator.slabs(size):
            return [lengths, *same]
        return [lengths, *sorted(others, key=lambda shape: -sum(map(granules, shape)) * len(self._recency[shape]))]

    def _evict(self, shape: tuple[int, ...], now: float, request: str, session: int) -> bool:
        self.settle()
        for page in self._recency.get(shape, {}).values():
            if self._evictable(page, now, request, session):
                self.drop(page)
                self._counts["evicted"] += 1
                return True
        return False

    @staticmethod
    def _evictable(page: Page, now: float, request: str, session: int) -> bool:
        own = bool(request) and page.request == request and page.session == session
        return page.refs == 0 and page.keep_until <= now and not own

    def _give(self, slot: int) -> None:
        retired = self.allocator.give(slot)
        if retired is not None:  # the slab may serve another page size: see slots.py
            for start in retired:
                self._out.append(Table(start, self._raise(start), SlotEntry(SlotState.FREE)))

    def free_if_done(self, page: Page) -> None:
        """Gives the slots back once nobody can touch them and nobody can find them."""
        if page.state is not PageState.DOOMED or page.refs or any(page.writers):
            return
        self.aside.discard(page)
        for slot in page.slots:
            self._out.append(Table(slot, 0, SlotEntry(SlotState.FREE)))
            self._give(slot)
        page.slots = []

    # --- states ------------------------------------------------------------------------------------------------------

    def store_granted(self, page: Page) -> None:
        """Generation first, then the entry: before anybody hears of the grant."""
        state = SlotState.READING if page.state is PageState.FETCHING else SlotState.GRANTED
        self._store(page, state, raised=True)

    def quarantine(self, page: Page) -> None:
        """A READ that was given up may still land: the slots are not free, whatever else happens."""
        self._store(page, SlotState.QUARANTINED)

    def _store(self, page: Page, state: SlotState, raised: bool = False) -> None:
        for shard, slot in enumerate(page.slots):
            entry = SlotEntry(
                state,
                page.key,
                shard,
                page.rows,
                page.lengths[shard],
                page.writers[shard],
                page.checksums[shard] if page.checksums else bytes(16),
                page.grant,
            )
            self._out.append(Table(slot, page.generations[shard] if raised else 0, entry))

    def seal(self, page: Page, checksums: Sequence[bytes]) -> bool:
        """All bytes are in and checksummed. False: another copy was first, this one goes."""
        there = self.index.get(page.key)
        if there is not page:
            if there is not None and there.state is PageState.SEALED:
                self._counts["duplicates"] += 1
                self.doom(page)
                return False
            if there is not None and there.state is PageState.PENDING:
                there.state = PageState.STALE  # it lost the race; its writers still own its slots
                self.aside.add(there)
            elif there is not None:
                self.index.pop(page.key)
                there.state = PageState.DOOMED
                self.aside.add(there)
        self.aside.discard(page)
        self.index[page.key] = page
        page.state = PageState.SEALED
        page.checksums = list(checksums)
        self._store(page, SlotState.SEALED)
        self._recency.setdefault(page.lengths, OrderedDict())[page.key] = page
        self._announce(page)
        return True

    def stale(self, page: Page) -> None:
        """The promise is not believed any more; who holds the slots may still write them."""
        self._leave_index(page)
        page.state = PageState.STALE
        self.aside.add(page)

    def doom(self, page: Page) -> None:
        """The page will not be (or is no longer) visible; its slots go when nobody can touch them."""
        if page.state is not PageState.DOOMED:
            self._leave_index(page)
            page.state = PageState.DOOMED
            self.aside.add(page)
        self.free_if_done(page)

    def drop(self, page: Page) -> None:
        """A sealed page is evicted or was found bad."""
        self._counts["dropped"] += 1
        self.doom(page)

    def _leave_index(self, page: Page) -> None:
        if self.index.get(page.key) is page:
            del self.index[page.key]
            self._withdraw(page.key)
        recency = self._recency.get(page.lengths)
        if recency is not None and recency.get(page.key) is page:  # the key's sealed page may be another one
            del recency[page.key]

    # --- recency -----------------------------------------------------------------------------------------------------

    def touch(self, pages: Sequence[Page]) -> None:
        """Makes a chain of sealed pages recent, children first, so that parents outlive them."""
        # PERF: the order matters only when something is evicted, so a lookup does not wait for it.
        self._touched.append(pages)

    def settle(self) -> None:
        """Brings recency up to date."""
        for pages in self._touched:
            for page in reversed(pages):
                recency = self._recency.get(page.lengths)
                if recency is not None and recency.get(page.key) is page:
                    recency.move_to_end(page.key)
        self._touched.clear()

    # --- catalogue ---------------------------------------------------------------------------------------------------

    def _announce(self, page: Page) -> None:
        state = catalogue.SEALED if page.state is PageState.SEALED else catalogue.PENDING
        self._withdraw(page.key, quiet=True)
        self._announced[page.key] = (state, page.size)
        self._account(page.key, state, page.size, 1)
        self._changes[page.key] = (state, page.size)

    def _withdraw(self, key: bytes, quiet: bool = False) -> None:
        known = self._announced.pop(key, None)
        if known is not None:
            self._account(key, *known, -1)
            if not quiet:
                self._changes[key] = (catalogue.GONE, 0)

    def _account(self, key: bytes, state: int, size: int, sign: int) -> None:
        self.digest = (self.digest + sign * entry_digest(key, state, _MEMORY, size)) % DIGEST_MOD
        if state == catalogue.SEALED:
            self.sealed += sign
        else:
            self.pending += sign

    def flush(self) -> list[bytes]:
        """Publishes what changed, coalesced per key. Returns the keys, for those who wait for them."""
        if not self._changes:
            return []
        changed = list(self._changes)
        by_width: dict[int, list[bytes]] = {}
        for key in changed:
            by_width.setdefault(len(key), []).append(key)
        for keys in by_width.values():
            rows = [self._changes[key] for key in keys]
            states, sizes = bytes(row[0] for row in rows), u32s(min(row[1], 0xFFFFFFFF) for row in rows)
            self._out.append(Publish(TOPIC, Delta(keys, states, bytes(len(keys)), sizes)))
            self.head += 1
        self._changes.clear()
        return changed

    def beat(self) -> CatalogueBeat:
        return CatalogueBeat(self.digest.to_bytes(16, "little"), self.pending, self.sealed)

    def snapshot(self) -> list[tuple[bytes, int, int]]:
        """Key, state and size of everything announced, as it is now."""
        return [(key, state, size) for key, (state, size) in self._announced.items()]

    # --- checks ------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        self.allocator.validate()
        used: set[int] = set()
        for page in [*self.index.values(), *self.aside]:
            for slot, length in zip(page.slots, page.lengths, strict=True):
                cover = set(range(slot, slot + granules(length)))
                assert not cover & used, f"slot {slot} is used twice"
                used |= cover
            assert page.refs >= 0
        assert len(used) == self.allocator.backed - self.allocator.free_granules(), "slots leaked"
        for key, page in self.index.items():
            assert page.key == key
            assert page.state in (PageState.PENDING, PageState.SEALED, PageState.FETCHING)
            announced = page.state is not PageState.FETCHING
            assert announced == (key in self._announced)
            if page.state is PageState.SEALED:
                assert not any(page.writers) and not page.unwritten and len(page.checksums) == len(page.slots)
                assert self._recency[page.lengths][key] is page
        assert sum(map(len, self._recency.values())) == self.sealed
        assert self.sealed + self.pending == len(self._announced)
        total = sum(entry_digest(key, state, _MEMORY, size) for key, (state, size) in self._announced.items())
        assert total % DIGEST_MOD == self.digest
