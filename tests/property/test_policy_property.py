"""Policies of eviction against naive ones that keep plain lists, step by step: the same victims in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.eviction.aged import AgedQueue
from pegaflow.services.tier.eviction.holds import Holds
from pegaflow.services.tier.eviction.lru import Lru
from pegaflow.services.tier.eviction.policy import Policy
from pegaflow.services.tier.eviction.s3fifo import MAX_USES, PROMOTE, SMALL, S3Fifo
from pegaflow.services.tier.page import Page, PageState

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "new", "touch", "touch", "hold", "release", "evict", "evict", "again"]), st.integers(0, 99)
    ),
    max_size=120,
)


def page(number: int) -> Page:
    return Page(number.to_bytes(32, "big"), PageState.SEALED, [number], [1], (GRANULE,))


class Naive(Protocol):
    def new(self, key: bytes, turn: int) -> None: ...
    def touch(self, key: bytes, turn: int) -> None: ...
    def victim(self, held: set[bytes]) -> bytes | None: ...
    def gone(self, key: bytes) -> None: ...


class NaiveLru:
    def __init__(self) -> None:
        self.used: dict[bytes, int] = {}

    def new(self, key: bytes, turn: int) -> None:
        self.used[key] = turn

    def touch(self, key: bytes, turn: int) -> None:
        self.used[key] = turn

    def victim(self, held: set[bytes]) -> bytes | None:
        free = [key for key in self.used if key not in held]
        return min(free, key=self.used.__getitem__) if free else None

    def gone(self, key: bytes) -> None:
        del self.used[key]


class NaiveS3Fifo:
    """As in the paper, with lists; held pages keep their place."""

    def __init__(self) -> None:
        self.small: list[bytes] = []
        self.main: list[bytes] = []
        self.ghosts: list[bytes] = []
        self.uses: dict[bytes, int] = {}

    def new(self, key: bytes, turn: int) -> None:
        if key in self.ghosts:
            self.ghosts.remove(key)
            self.main.append(key)
        else:
            self.small.append(key)
        self.uses[key] = 0

    def touch(self, key: bytes, turn: int) -> None:
        self.uses[key] = min(self.uses[key] + 1, MAX_USES)

    def victim(self, held: set[bytes]) -> bytes | None:
        while True:
            small, main = [k for k in self.small if k not in held], [k for k in self.main if k not in held]
            full = len(self.small) > SMALL * (len(self.small) + len(self.main))
            if small and (full or not main):
                if self.uses[small[0]] < PROMOTE:
                    return small[0]
                self.small.remove(small[0])
                self.main.append(small[0])
                self.uses[small[0]] = 0
            elif main:
                if not self.uses[main[0]]:
                    return main[0]
                self.main.remove(main[0])
                self.main.append(main[0])
                self.uses[main[0]] -= 1
            else:
                return small[0] if small else None

    def gone(self, key: bytes) -> None:
        if key in self.small:
            self.small.remove(key)
            self.ghosts = [*self.ghosts, key][-max(len(self.main), 16) :]
        else:
            self.main.remove(key)


@pytest.mark.parametrize(("make", "naive"), [(Lru, NaiveLru), (S3Fifo, NaiveS3Fifo)])
@given(steps=STEPS)
@settings(max_examples=200, deadline=None)
def test_the_same_victims_as_a_naive_policy(
    make: Callable[[], Policy], naive: Callable[[], Naive], steps: list[tuple[str, int]]
) -> None:
    policy, model = make(), naive()
    here: dict[bytes, Page] = {}
    held: set[bytes] = set()
    past: list[int] = []
    for turn, (what, number) in enumerate(steps, 1):
        one = list(here.values())[number % len(here)] if here else None
        if what == "new" or (what == "again" and past):
            one = page(turn if what == "new" else past.pop(number % len(past)))
            one.used_at = turn
            policy.admit(one)
            policy.release(one)
            model.new(one.key, turn)
            here[one.key] = one
        elif what == "evict":
            found, wanted = policy.victim(), model.victim(held)
            assert (found.key if found is not None else None) == wanted
            if found is not None:
                policy.remove(found)
                model.gone(found.key)
                del here[found.key]
                past.append(found.slots[0])
        elif one is not None and what == "touch":
            policy.touch(one, turn)
            model.touch(one.key, turn)
            if one.key not in held:
                policy.release(one)
        elif one is not None and what == "hold":
            policy.hold(one)
            held.add(one.key)
        elif one is not None and what == "release":
            policy.release(one)
            held.discard(one.key)
        policy.validate()
    while (found := policy.victim()) is not None:
        assert found.key == model.victim(held)
        policy.remove(found)
        model.gone(found.key)
    assert model.victim(held) is None


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 9)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_an_aged_queue_gives_the_oldest_and_does_not_grow(steps: list[tuple[bool, int, int]]) -> None:
    queue, pages = AgedQueue(), [page(n) for n in range(31)]
    model: list[tuple[int, int]] = []  # age, number in order of adding
    for add, number, age in steps:
        one = pages[number]
        queue.discard(one)
        model = [entry for entry in model if entry[1] != number]
        if add:
            queue.add(one, age)
            model.append((age, number))
        queue.validate()
        oldest = queue.oldest()
        youngest = min((age for age, _ in model), default=0)
        wanted = [number for age, number in model if age == youngest]
        assert (oldest is None and not wanted) or oldest is pages[wanted[-1]]
        assert len(queue) == len(model)


def test_a_queue_whose_pages_are_used_for_ever_keeps_no_trace_of_it() -> None:
    queue, old, busy = AgedQueue(), page(1), page(2)
    queue.add(old, 1)
    for age in range(2, 5000):
        queue.discard(busy)
        queue.add(busy, age)
    assert len(queue._ages) < 200


@given(steps=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 20)), max_size=100))
@settings(max_examples=100, deadline=None)
def test_holds_end_in_time_and_each_page_is_listed_once(steps: list[tuple[int, int]]) -> None:
    holds, pages, now = Holds(), [page(n) for n in range(9)], 0.0
    for number, seconds in steps:
        one = pages[number]
        one.hold_until = max(one.hold_until, now + seconds)
        holds.add([one], now)
        holds.validate()
        now += 3
        over = holds.due(now, 99)
        assert all(one.hold_until <= now for one in over)
        assert {one for one in pages if one.timed} == {one for one in pages if one.hold_until > now}
    assert len(holds.due(now + 100, 99)) == sum(one.hold_until > now for one in pages)
    assert holds.count == 0
