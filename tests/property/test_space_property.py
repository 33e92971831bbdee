"""The pool's space against a model that is asked anew each time, by brute force: what may go, whose it is, what could be had.

Five namespaces with three page sizes share a small pool with a short last slab. Pages come in chains; leases, holds and keeps
hold them; engines come and go; a quota binds one namespace. After every reservation:

    refused   only if nothing that may be taken would make room
    evicted   only what may go; children before parents; nothing of the own request; nothing from a namespace below its share,
              unless enough was free and only the cut of the slabs was in the way
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import RemoteError
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.slots import Slab

NAMES = [bytes((letter,)) * 16 for letter in b"abcde"]
SIZES = dict(zip(NAMES, (1, 3, 7, 1, 3), strict=True))
SLAB = 8
POOL = 69  # eight slabs, and one of 5 granules
QUOTA = 14
SUM = [b"s" * 16]


@dataclass(frozen=True)
class Before:
    """What was there before a reservation."""

    pages: tuple[Page, ...]
    may_go: frozenset[Page]
    above: dict[bytes, int]
    scattered: int


class World(RuleBasedStateMachine):
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.out: list[object] = []
        self.counts: Counter[str] = Counter()
        options = SpaceOptions(policy=self.policy, quotas={NAMES[3]: QUOTA * GRANULE}, keep_share=0.2)
        self.pages = Pages(POOL, self.out, self.counts, options)  # type: ignore[arg-type]
        self.space = self.pages.space
        self.chains: dict[tuple[bytes, int], list[Page]] = {}
        self.parents: dict[Page, Page] = {}
        self.leased: list[Page] = []
        self.serial = 0

    @initialize(active=st.sets(st.sampled_from(NAMES), min_size=1))
    def begin(self, active: set[bytes]) -> None:
        self.pages.allocator.grow(POOL)
        assert self.pages.allocator.slab == SLAB
        self.space.shares.active = frozenset(active)

    # --- the model ---------------------------------------------------------------------------------------------------

    def all(self) -> list[Page]:
        return [*self.pages.index.values(), *self.pages.aside]

    def held(self, page: Page, request: str) -> bool:
        late = max(page.hold_until, page.kept_until) > self.space.now
        return page.state is not PageState.SEALED or page.refs > 0 or late or page.request == request

    def may_go(self, request: str) -> frozenset[Page]:
        """Pages that are held by nothing, nor is anything that continues them."""
        below: dict[Page, list[Page]] = {}
        for page in self.all():
            parent = self.parents.get(page)
            if parent is not None:
                below.setdefault(parent, []).append(page)

        def free(page: Page) -> bool:
            return not self.held(page, request) and all(free(child) for child in below.get(page, ()))

        return frozenset(page for page in self.all() if free(page))

    def slabs(self) -> list[Slab]:
        return list(self.pages.allocator._slabs.values())

    def above(self) -> dict[bytes, int]:
        used: Counter[bytes] = Counter()
        for page in self.all():
            used[page.key[:16]] += page.granules
        active = self.space.shares.active
        share = POOL // len(active) if active else 0
        return {name: used[name] - (min(share, QUOTA if name == NAMES[3] else POOL) if name in active else 0) for name in NAMES}

    def scattered(self, size: int) -> int:
        return sum(len(slab.free) * slab.size for slab in self.slabs() if slab.size != size)

    def possible(self, name: bytes, request: str) -> str:
        """How room could be made for a page of this namespace, after it was refused; empty: not at all."""
        size, may_go, above = SIZES[name], self.may_go(request), self.above()
        used = sum(page.granules for page in self.all() if page.key[:16] == name)
        if name == NAMES[3] and used + size > QUOTA:
            return "quota" if any(page.key[:16] == name for page in may_go) else ""
        if any(slab.size == size and slab.free for slab in self.slabs()):
            return "a free slot"
        opened = {slab.first for slab in self.slabs()}
        if any(min(SLAB, POOL - first) >= size for first in range(0, POOL, SLAB) if first not in opened):
            return "an empty slab"
        theirs = {other for other in NAMES if other == name or above[other] > 0}
        if any(page.key[:16] in theirs and SIZES[page.key[:16]] == size for page in may_go):
            return "a page of the same size"
        for slab in self.slabs():
            holders = [page for page in self.all() if any(slab.first <= slot < slab.first + SLAB for slot in page.slots)]
            if slab.size == size or min(SLAB, POOL - slab.first) < size or not all(page in may_go for page in holders):
                continue
            if all(page.key[:16] in theirs for page in holders):
                return "a slab"
            if self.scattered(size) >= size:
                return "a slab, because enough is free"
        return ""

    # --- what happens ------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        self.space.turn += 1

    @rule(
        name=st.sampled_from(NAMES),
        chain=st.integers(0, 4),
        count=st.integers(1, 12),
        seal=st.sampled_from([True, True, True, False]),
        fetch=st.booleans(),
    )
    def save(self, name: bytes, chain: int, count: int, seal: bool, fetch: bool) -> None:
        self.turn()
        request = f"{name.hex()}{chain}"
        pages = self.chains.setdefault((name, chain), [])
        while pages and pages[-1] not in self.all():
            pages.pop()
        for _ in range(count):
            self.serial += 1
            key = name + self.serial.to_bytes(32, "big")
            parent = pages[-1] if pages else None
            self.space.settle()
            before = Before(tuple(self.all()), self.may_go(request), self.above(), self.scattered(SIZES[name]))
            state = PageState.FETCHING if fetch else PageState.PENDING
            page = self.pages.reserve(key, state, (SIZES[name] * GRANULE,), request, 1, parent)
            self.judge(name, before, parent)
            if page is None:
                assert not self.possible(name, request), f"refused, but there was {self.possible(name, request)}"
                return
            if parent is not None:
                self.parents[page] = parent
            page.request = request
            pages.append(page)
            if seal:
                page.unwritten.clear()
                self.pages.seal(page, SUM)

    def judge(self, name: bytes, before: Before, parent: Page | None) -> None:
        gone = set(before.pages) - set(self.all())
        assert parent not in gone
        assert gone <= before.may_go, "a page went that was held, or of the own request, or before what continues it"
        left = set(self.all())
        assert not [page for page in left if self.parents.get(page) in gone], "a parent went before its child"
        for page in gone:
            owner = page.key[:16]
            assert owner == name or before.above[owner] > 0 or before.scattered >= SIZES[name], "taken from below its share"

    @precondition(lambda self: self.all())
    @rule(data=st.data(), written=st.booleans())
    def end(self, data: st.DataObject, written: bool) -> None:
        """A page that is not sealed: its bytes come, or it is abandoned."""
        self.turn()
        open_ones = [page for page in self.all() if page.state in (PageState.PENDING, PageState.FETCHING, PageState.STALE)]
        if not open_ones:
            return
        page = data.draw(st.sampled_from(open_ones))
        page.unwritten.clear()
        if written:
            self.pages.seal(page, SUM)
        else:
            self.parents = {child: parent for child, parent in self.parents.items() if parent is not page}
            self.pages.doom(page)

    @precondition(lambda self: self.chains)
    @rule(data=st.data(), lease=st.booleans())
    def use(self, data: st.DataObject, lease: bool) -> None:
        """A prefix is looked up, and perhaps leased."""
        self.turn()
        pages = self.chains[data.draw(st.sampled_from(sorted(self.chains)))]
        there = [page for page in pages if self.pages.index.get(page.key) is page]
        sealed = [page for page in there if page.state is PageState.SEALED][: data.draw(st.integers(1, 8))]
        if lease:
            for page in sealed:
                page.refs += 1
            self.leased += sealed
        self.space.touch(sealed, chain=False)

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.leased)))
        over, self.leased = self.leased[:count], self.leased[count:]
        for page in over:
            page.refs -= 1
            self.pages.free_if_done(page)
        self.space.look(over)

    @precondition(lambda self: self.all())
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 10.0]), how=st.sampled_from(["hold", "keep", "unkeep"]))
    def hold(self, data: st.DataObject, seconds: float, how: str) -> None:
        sealed = [page for page in self.all() if page.state is PageState.SEALED]
        if not sealed:
            return
        pages = data.draw(st.lists(st.sampled_from(sealed), max_size=4, unique=True))
        until = self.space.now + seconds
        if how == "hold":
            self.space.hold(pages, until)
            self.space.touch(pages, chain=False)
            return
        if how == "unkeep":
            self.space.unkeep(pages)
            return
        kept = [page.kept_until for page in sealed]
        try:
            self.space.keep(pages, until)
        except RemoteError as error:
            assert error.code == "keep_full" and kept == [page.kept_until for page in sealed]
        else:
            assert all(page.kept_until >= until for page in pages)
            assert all(self.parents[page].kept_until >= until for page in pages if page in self.parents)
        assert sum(page.granules for page in self.all() if page.kept_until) <= 0.2 * POOL

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0]))
    def time(self, seconds: float) -> None:
        self.turn()
        self.space.now += seconds
        self.space.tick()

    @rule(active=st.sets(st.sampled_from(NAMES)))
    def engines(self, active: set[bytes]) -> None:
        self.space.shares.active = frozenset(active)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def sound(self) -> None:
        self.pages.validate()
        used = sum(page.granules for page in self.all() if page.key[:16] == NAMES[3])
        assert used <= QUOTA, "a namespace is over its quota"
        self.out.clear()

    @invariant()
    def the_queues_hold_what_may_go_next(self) -> None:
        """The links that the tier has learnt are those of the model."""
        for page in self.all():
            assert page.parent is self.parents.get(page), "the tier believes that another page continues"

    def teardown(self) -> None:
        self.space.now += 100
        for page in self.leased:
            page.refs -= 1
            self.pages.free_if_done(page)
        self.space.look(self.leased)
        for page in self.all():
            if page.state in (PageState.PENDING, PageState.FETCHING, PageState.STALE):
                self.pages.doom(page)
        self.space.tick()
        self.pages.validate()
        assert not self.space.kept and not self.pages.aside
        for page in list(self.pages.index.values()):
            assert page.age or page.child is not None, "a page that will never go"


class S3World(World):
    policy = "s3fifo"


World.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
S3World.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestLru = World.TestCase
TestS3Fifo = S3World.TestCase
