"""What is remembered of pages and lookups, within bounds."""

from __future__ import annotations

import random
import sys
import tracemalloc

import pytest
from pegaflow.common.wire.messages.inspection import Step
from pegaflow.services.tier.chronicle import OVERHEAD, Chronicle, Event
from pegaflow.services.tier.last_lookups import MAX_REQUEST, Ended, LastLookups
from pegaflow.services.tier.turns import MAX_MARKS, Turns


def key(number: int, fingerprint: bytes = b"f" * 16) -> bytes:
    return fingerprint + number.to_bytes(8, "big") * 4


def test_a_story_is_told_in_order_with_who_and_when() -> None:
    chronicle = Chronicle(1 << 20)
    for at, step, who in ((1.0, Step.GRANTED, (3, "r")), (2.0, Step.SEALED, ()), (9.0, Step.EVICTED, ("room", 4, "x"))):
        chronicle.now = at
        chronicle.note(step, [key(n) for n in range(5)], who)
        chronicle.validate()
    assert chronicle.story(key(2)) == [
        Event(1.0, Step.GRANTED, (3, "r")),
        Event(2.0, Step.SEALED, ()),
        Event(9.0, Step.EVICTED, ("room", 4, "x")),
    ]
    assert chronicle.since == 1.0
    assert chronicle.story(key(7)) == []


def test_other_fingerprints_and_other_hashes_are_other_pages() -> None:
    chronicle = Chronicle(1 << 20)
    chronicle.note(Step.SEALED, [key(1), key(1, b"g" * 16), key(0x0102030405060708)[:20]])
    assert all(len(chronicle.story(one)) == 1 for one in (key(1), key(1, b"g" * 16), key(0x0102030405060708)[:20]))
    assert chronicle.story(key(1, b"h" * 16)) == chronicle.story(key(0x0102030405060708)[:19]) == []


def test_marks_are_found_at_whole_places_only() -> None:
    """Bytes that only look like a page, across two of them, are not its story."""
    chronicle = Chronicle(1 << 20)
    one, two = b"?" * 8 + bytes(range(16)), b"?" * 8 + bytes(range(16, 32))
    chronicle.note(Step.SEALED, [one, two])
    assert chronicle.story(b"?" * 8 + bytes(range(8, 24))) == []
    assert len(chronicle.story(two)) == 1


def test_one_by_one_or_all_at_once_is_the_same() -> None:
    both = Chronicle(1 << 20), Chronicle(1 << 20)
    keys = [key(n) for n in range(40)]
    both[0].note(Step.EVICTED, keys, ("room", 0, ""))
    for one in keys:
        both[1].one(Step.EVICTED, one, ("room", 0, ""))
    assert [chronicle.story(keys[7]) for chronicle in both] == [[Event(0.0, Step.EVICTED, ("room", 0, ""))]] * 2
    assert both[0].bytes == both[1].bytes == OVERHEAD + 16 * 40 + len("room"), "one batch"


@pytest.mark.parametrize("singly", [True, False])
def test_two_of_one_turn_are_kept_apart_by_whom_they_name(singly: bool) -> None:
    chronicle = Chronicle(1 << 20)
    for number in range(3):
        who = ("room", number, "r")
        if singly:
            chronicle.one(Step.EVICTED, key(number), who)
        else:
            chronicle.note(Step.EVICTED, [key(number)], who)
    assert [chronicle.story(key(n))[0].who[1] for n in range(3)] == [0, 1, 2]


def test_it_forgets_the_oldest_and_never_has_more_bytes_than_its_limit() -> None:
    chronicle, rng = Chronicle(50_000), random.Random(7)
    for at in range(2_000):
        chronicle.now = float(at)
        chronicle.note(rng.choice(list(Step)), [key(at * 100 + n) for n in range(rng.randrange(1, 60))], (at, "r" * (at % 9)))
        if at % 100 == 0:
            chronicle.validate()
    assert chronicle.story(key(0)) == [] and len(chronicle.story(key(199_900))) == 1
    assert 1_900 < chronicle.since < 1_999
    assert 45_000 < chronicle.bytes <= 50_000


@pytest.mark.parametrize("batch", [1, 100])
def test_what_it_counts_is_what_it_takes(batch: int) -> None:
    """Twice full, so that all of it has been replaced; measured, with a tenth for what the interpreter adds."""
    limit = 2 << 20
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        chronicle = Chronicle(limit)
        for at in range(2 * limit // (OVERHEAD + 16 * batch)):
            chronicle.now = at + 0.5
            chronicle.note(Step.SEALED, [key(at * batch + n) for n in range(batch)], (at + (1 << 40), f"req-{at}"))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken < 1.1 * limit


def test_without_a_limit_nothing_is_noted() -> None:
    chronicle = Chronicle(0)
    chronicle.note(Step.SEALED, [key(1)])
    chronicle.one(Step.GRANTED, key(1))
    chronicle.validate()
    assert chronicle.story(key(1)) == [] and chronicle.bytes == 0


def ended(request: str, at: float = 0.0) -> Ended:
    return Ended(at, 0.1, 3, b"f" * 16, request, 4, 2, 1, False, 0, 0, "unknown", key(2))


def test_lookups_are_found_by_the_beginning_of_their_request_the_latest_first() -> None:
    last = LastLookups(1 << 16)
    for at, request in enumerate(("a-1", "b-1", "a-2", "a-1")):
        last.ended(ended(request, float(at)))
    assert [(one.request, one.at) for one in last.of("a-")] == [("a-1", 3.0), ("a-2", 2.0), ("a-1", 0.0)]
    assert [one.at for one in last.of("b-1")] == [1.0] and list(last.of("c")) == []
    assert len(list(last.of(""))) == 4 and last.since(9.0) == 0.0


def test_lookups_are_bounded_too() -> None:
    last = LastLookups(10_000)
    for at in range(200):
        last.ended(ended("r" * (at * 10), float(at)))
        last.validate()
    assert len(last) < 40 and last.since(0.0) > 150
    assert {len(one.request) for one in last.of("")} == {MAX_REQUEST}
    assert sys.getsizeof(ended("r")) < 250


def test_a_turn_has_a_time() -> None:
    turns = Turns()
    assert turns.time(5, 9.0) is None
    for turn, now in ((10, 1.0), (10, 1.5), (20, 2.0), (30, 3.0)):
        turns.mark(turn, now)
    assert [turns.time(turn, 4.0) for turn in (9, 10, 11, 20, 30, 99)] == [None, 1.0, 2.0, 2.0, 3.0, 4.0]


def test_the_far_past_of_turns_is_known_less_exactly() -> None:
    turns = Turns()
    for at in range(3 * MAX_MARKS):
        turns.mark(10 * at, float(at))
        assert len(turns._turns) <= MAX_MARKS
    late = turns.time(10 * (3 * MAX_MARKS - 2), 1e9)
    assert late is not None and 3 * MAX_MARKS - 2 <= late < 3 * MAX_MARKS
    early = turns.time(1000, 1e9)
    assert early is not None and 100 <= early <= 132
