"""The pool's space as scripts: shares, quotas, keeping, watermarks, the next level's hook."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import RemoteError
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages

A, B, C = (bytes((letter,)) * 16 for letter in b"abc")


class Script:
    """A pool of `total` granules; pages of namespace A take `SIZES[A]` of them, and so on."""

    SIZES: ClassVar = {A: 1, B: 53, C: 1}

    def __init__(self, total: int = 64, active: tuple[bytes, ...] = (A,), **options: object) -> None:
        self.counts: Counter[str] = Counter()
        self.out: list[object] = []
        self.pages = Pages(total, self.out, self.counts, SpaceOptions(**options))  # type: ignore[arg-type]
        self.pages.allocator.grow(total)
        self.space = self.pages.space
        self.space.shares.active = frozenset(active)
        self.number = 0

    def save(self, name: bytes, count: int, request: str = "", fetched: bool = False) -> list[Page]:
        """A chain of so many pages, as far as there is room."""
        self.space.turn += 1
        got: list[Page] = []
        for _ in range(count):
            self.number += 1
            key = name + self.number.to_bytes(32, "big")
            state = PageState.FETCHING if fetched else PageState.PENDING
            page = self.pages.reserve(key, state, (self.SIZES[name] * GRANULE,), request, 1, got[-1] if got else None)
            if page is None:
                break
            page.unwritten.clear()
            self.pages.seal(page, [b"s" * 16])
            got.append(page)
        self.out.clear()
        if self.pages.allocator.total <= 1000:
            self.pages.validate()
        return got

    def use(self, pages: list[Page]) -> None:
        self.space.turn += 1
        self.space.touch(pages)

    def time(self, seconds: float) -> None:
        self.space.now += seconds
        self.space.turn += 1
        self.space.tick()
        self.pages.validate()

    def here(self, pages: list[Page]) -> int:
        return sum(self.pages.index.get(page.key) is page for page in pages)

    def used(self, name: bytes) -> int:
        return self.space.shares.of(name).used


def test_children_go_before_their_parents_without_any_lookup() -> None:
    script = Script(16)
    old = script.save(A, 16)
    script.save(A, 3)
    assert [page in script.pages.index.values() for page in old] == [True] * 13 + [False] * 3


def test_a_whole_old_prompt_goes_before_the_end_of_a_newer_one() -> None:
    script = Script(16)
    old, new = script.save(A, 8), script.save(A, 8)
    script.save(A, 8)
    assert (script.here(old), script.here(new)) == (0, 8)


def test_a_shared_prefix_stays_while_anything_continues_it() -> None:
    script = Script(16)
    prefix = script.save(A, 4)
    script.number += 1
    for _ in range(6):
        page = script.pages.reserve(
            A + bytes(31) + bytes((script.number % 250,)), PageState.PENDING, (GRANULE,), parent=prefix[-1]
        )
        assert page is not None
        page.unwritten.clear()
        script.pages.seal(page, [b"s" * 16])
        script.number += 1
    script.save(A, 11)
    assert script.here(prefix) == 4


def test_a_request_spares_its_own_pages_only_while_it_is_given_slots() -> None:
    """Also one whose last child, of another request, makes room for it."""
    script = Script(8)
    [mine] = script.save(A, 1, "mine")
    child = script.pages.reserve(A + b"child".ljust(32), PageState.PENDING, (GRANULE,), "other", 1, mine)
    assert child is not None
    child.unwritten.clear()
    script.pages.seal(child, [b"s" * 16])
    others = script.save(A, 6, "more of mine")
    script.use(others)
    assert len(script.save(A, 1, "mine")) == 1 and script.here([child]) == 0 and script.here([mine]) == 1
    script.use(others)
    script.save(A, 1, "yet another")
    assert script.here([mine]) == 0, "it may go again"


def test_replicas_go_first_however_recent() -> None:
    script = Script(16)
    own = script.save(A, 8)
    replicas = script.save(A, 8, fetched=True)
    script.use(replicas)
    script.save(A, 8)
    assert (script.here(own), script.here(replicas)) == (8, 0)


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_a_pool_whose_size_is_no_multiple_of_a_slab_is_used_to_its_end(policy: str) -> None:
    script = Script(133, policy=policy)
    assert len(script.save(A, 200)) == 200
    assert script.pages.allocator.free_granules() == 0


def test_models_of_very_different_pages_and_traffic_do_not_starve_each_other() -> None:
    """A: pages of one granule, a hundred times the traffic. B: pages of 53, now and then."""
    half, slab = 4 * 1024, 1024
    script = Script(2 * half, active=(A, B))
    for turn in range(200):
        assert len(script.save(A, 100)) == 100, "a busy model is not refused"
        if turn % 10 == 0:
            assert len(script.save(B, 3)) == 3, "a rare model is not refused"
    assert script.used(B) == 60 * 53 < half, "nothing of B went: it is below its share"
    assert script.used(A) > half - slab
    assert len(script.save(B, 500)) == 500
    assert script.used(A) >= half - slab and script.used(B) >= half - slab, "both have their share, up to a slab"
    assert len(script.save(A, 400)) == 400
    assert script.used(B) >= half - slab
    script.pages.validate()


def test_what_no_engine_can_use_goes_first() -> None:
    script = Script(64, active=(A, C))
    old, mine = script.save(C, 30), script.save(A, 30)
    script.use(old)
    script.space.shares.active = frozenset([A])
    script.save(A, 30)
    assert (script.here(mine), script.here(old)) == (30, 4)


def test_a_namespace_over_its_quota_evicts_its_own_pages_first() -> None:
    script = Script(64, active=(A, C), quotas={C: 10 * GRANULE})
    mine = script.save(A, 30)
    first = script.save(C, 10)
    assert len(script.save(C, 5)) == 5
    assert script.used(C) == 10 and script.here(first) == 5 and script.here(mine) == 30


def test_and_gets_no_space_rather_than_others_pages() -> None:
    script = Script(64, active=(A, C), quota_default=0.25)
    mine = script.save(A, 16)
    held = script.save(C, 16)
    for page in held:
        page.refs += 1
    script.space.touch(held)
    assert script.save(C, 1) == []
    assert script.here(mine) == 16
    view = script.space.view()["namespaces"][C.hex()]
    assert (view["used_bytes"], view["quota_bytes"], view["refused"]) == (16 * GRANULE, 16 * GRANULE, 1)


def test_kept_pages_stay_with_what_they_continue_until_their_time() -> None:
    script = Script(64, keep_share=0.25)
    prefix = script.save(A, 10)
    script.space.keep(prefix[9:], script.space.now + 60)
    assert script.space.kept == 10
    script.save(A, 200)
    assert script.here(prefix) == 10
    script.time(61)
    assert script.space.kept == 0
    script.save(A, 64)
    assert script.here(prefix) == 0


def test_more_than_the_share_is_not_kept_and_nothing_changes() -> None:
    script = Script(64, keep_share=0.25)
    pages = script.save(A, 20)
    script.space.keep(pages[:16], 60.0)
    with pytest.raises(RemoteError, match="keep_full") as refused:
        script.space.keep(pages[16:], 60.0)
    assert str(17 * GRANULE) not in refused.value.text and str(16 * GRANULE) in refused.value.text
    assert script.space.kept == 16 and not any(page.kept_until for page in pages[16:])
    script.space.keep(pages[:16], 90.0)  # again, and longer: costs nothing
    script.space.unkeep(pages[:16])
    assert script.space.kept == 0
    script.save(A, 64)
    assert script.here(pages) == 0


def test_above_the_high_watermark_pages_go_until_the_low_one_some_at_a_time() -> None:
    script = Script(1000, evict_high=0.9, evict_low=0.5)
    script.save(A, 899)
    script.time(1)
    assert script.used(A) == 899, "below the mark"
    script.save(A, 50)
    script.time(1)
    assert script.used(A) == 949 - 256, "a bounded number in one tick"
    script.time(1)
    assert script.used(A) == 500
    script.time(1)
    assert script.used(A) == 500
    before = script.counts["evicted"]
    script.save(A, 400)
    assert script.counts["evicted"] == before, "grants find free slots"


def test_watermarks_are_of_what_pages_of_this_size_can_have() -> None:
    script = Script(800, evict_high=0.9, evict_low=0.5)  # eight slabs of 100 granules, of which a page takes 53
    script.save(B, 7)
    script.time(1)
    assert script.used(B) == 7 * 53, "below the mark"
    script.save(B, 1)
    script.time(1)
    assert script.used(B) == 4 * 53


def test_the_next_level_takes_pages_over_before_their_slots_are_free() -> None:
    script = Script(100, evict_high=0.9, evict_low=0.8)
    pages = script.save(A, 95)
    taken: list[Page] = []

    def spill(page: Page) -> bool:
        taken.append(page)
        return len(taken) <= 10

    script.space.spill = spill
    script.time(1)
    assert len(taken) == 15 and script.used(A) == 90, "what it does not take goes at once"
    assert script.here(taken) == 10, "what it writes out can still be read"
    script.time(1)
    assert len(taken) == 15, "pages on their way out count as gone"
    taken[0].refs += 1  # somebody reads one meanwhile
    for page in taken[:10]:
        script.space.spilled(page)
    script.pages.validate()
    assert script.used(A) == 81 and script.here(pages) == 81
    taken[0].refs -= 1
    script.space.look(taken[:1])
    script.time(1)


def test_a_pool_full_of_held_pages_is_not_walked_for_each_new_one() -> None:
    """Counts looks at pages instead of seconds: refusing a page must not ask every held one."""
    script = Script(2000)
    held = script.save(A, 1900)
    for page in held[:1000]:
        page.refs += 1
    script.space.touch(held[:1000])
    script.space.hold(held[1000:], script.space.now + 10)
    script.use(held[1000:])
    script.time(0.1)
    asked = 0
    real = script.space._held

    def count(page: Page) -> bool:
        nonlocal asked
        asked += 1
        return real(page)

    script.space._held = count  # type: ignore[method-assign]
    assert len(script.save(A, 100)) == 100
    asked_before, asked = asked, 0
    assert script.save(A, 50)[50:] == [] and script.pages.allocator.used == 2000
    assert asked < 50 * 20 and asked_before < 100 * 20
