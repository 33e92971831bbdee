"""Loading: each row of the contract's table, changes, aborts, failures, strict decode. Block size 16."""

from array import array

import pytest
from load_decoder import BLOCK, LATER, LEASE, SESSION, Decoder
from pegaflow.connector.load_tracker import Ask, Cancel, Load, Loaded, Match, Release
from pegaflow.connector.session import LeaseRef, LookupAnswer


@pytest.mark.parametrize(
    ("ids", "stored", "tails", "computed", "expected"),
    [
        (51, {0, 1, 2}, {50}, 0, 50),
        (51, {0, 1, 2}, {50}, 16, 34),
        (51, {0, 1, 2}, set(), 0, 48),
        (51, {0, 2}, {50}, 0, 16),
        (49, {0, 1, 2}, set(), 0, 48),
        (11, set(), {10}, 0, 10),
        (50, {0, 1, 2}, {50}, 0, 49),
        (48, {0, 1, 2}, set(), 0, 47),
        (48, {0, 1}, {47}, 0, 47),
        (51, {0, 1, 2}, {51}, 0, 50),
        (51, set(), {50}, 0, 0),
        (51, {0, 1}, {50}, 32, 0),
    ],
)
@pytest.mark.parametrize("known_at_admission", [True, False])
def test_the_table(ids: int, stored: set[int], tails: set[int], computed: int, expected: int, known_at_admission: bool) -> None:
    decoder = Decoder(ids, stored, tails)
    decoder.lookup(computed // BLOCK if known_at_admission else 0)
    assert decoder.match(computed).tokens == expected
    assert decoder.match(computed).tokens == expected
    assert decoder.asks == 1
    decoder.allocate(expected)
    decoder.receive()
    assert decoder.released == decoder.given
    assert decoder.tracker.open_leases == 0


def test_a_load_names_pages_and_blocks() -> None:
    decoder = Decoder(51, {0, 1, 2}, {50}, shards=2)
    decoder.lookup()
    assert decoder.match(16).tokens == 34
    (load,) = decoder.allocate(34)
    assert load == Load("r", (201, 202, 203), LEASE, array("I", range(2, 8)), array("Q", range(52, 58)), True, "")
    # Block 3 came as a tail: its full page is still to be saved when decoding has filled it.
    assert decoder.receive() == [Release(LEASE), Loaded("r", 1, 3)]
    assert decoder.receive() == []


def test_a_tail_page_that_is_not_needed_is_not_loaded() -> None:
    decoder = Decoder(48, {0, 1, 2})
    decoder.lookup()
    assert decoder.match().tokens == 47
    (load,) = decoder.allocate(47)
    assert isinstance(load, Load)
    assert load.blocks == (200, 201, 202)
    assert not load.tail


def test_no_answer_yet() -> None:
    decoder = Decoder(51, {0})
    (ask,) = decoder.ask()
    assert decoder.match() == Match(None)
    assert isinstance(ask, Ask)
    decoder.answer(ask)
    assert decoder.match().tokens == 16


def test_an_answer_that_never_comes_is_a_failure_and_not_a_hang() -> None:
    decoder = Decoder(51, {0, 1, 2})
    (ask,) = decoder.ask()
    decoder.now = 6.1
    assert decoder.match() == Match(0, commands=(Cancel(1, "lookup_timeout"),))
    assert isinstance(ask, Ask)
    assert decoder.answer(ask) == [Release(LEASE)]
    assert decoder.match().tokens == 0


def test_no_tier() -> None:
    decoder = Decoder(51, {0})
    decoder.ask()
    decoder.tracker.unanswerable(1)
    decoder.tracker.validate()
    assert decoder.match() == Match(0)


def test_an_error_is_nothing_to_load() -> None:
    decoder = Decoder(51, {0})
    (ask,) = decoder.ask()
    assert isinstance(ask, Ask)
    decoder.answer(ask, "overloaded")
    assert decoder.match() == Match(0)


def test_an_answer_that_was_cut_short_counts_as_far_as_it_goes() -> None:
    decoder = Decoder(51, {0, 1, 2})
    (ask,) = decoder.ask()
    assert isinstance(ask, Ask)
    pages = array("I", [1]), array("Q", [2])
    decoder.apply(decoder.tracker.answered(LookupAnswer(ask.lookup, LEASE, 1, -1, *pages, b"\0", "deadline")))
    assert decoder.match() == Match(16)


def test_a_request_nobody_announced_is_asked_for() -> None:
    decoder = Decoder(51, {0})
    assert decoder.match() == Match(None, ask=True)


def test_a_changed_request_releases_and_asks_again() -> None:
    decoder = Decoder(51, {0, 1, 2})
    decoder.lookup()
    assert decoder.match().tokens == 48
    decoder.ids = decoder.prompt = 80
    assert decoder.match() == Match(None, ask=True)
    commands = decoder.ask()
    assert commands[0] == Release(LEASE)
    assert isinstance(commands[1], Ask)
    assert decoder.released == [LEASE]


def test_a_request_that_changes_while_it_is_being_asked_for_cancels() -> None:
    decoder = Decoder(51, {0, 1, 2})
    (old,) = decoder.ask()
    decoder.ids = decoder.prompt = 80
    assert decoder.match() == Match(None, ask=True)
    assert decoder.ask()[0] == Cancel(1)
    assert isinstance(old, Ask)
    assert decoder.answer(old) == [Release(LEASE)]


def test_local_blocks_that_vanished_are_asked_for() -> None:
    decoder = Decoder(51, {0, 1, 2}, {50})
    decoder.lookup(first=2)
    assert decoder.match(16) == Match(None, ask=True)
    decoder.lookup(first=1)
    assert decoder.released == [LEASE]
    assert decoder.match(16).tokens == 34


@pytest.mark.parametrize("strict", [False, True])
def test_local_blocks_that_made_an_answer_useless_and_vanished_are_asked_for(strict: bool) -> None:
    """vLLM had the blocks itself, found no room to admit the request, and then gave them to others."""
    decoder = Decoder(49, {0, 1, 2}, strict=strict)
    decoder.lookup()
    assert decoder.match(48) == Match(0, commands=(Release(LEASE),))
    assert decoder.match(48) == Match(0)
    assert decoder.match(16) == Match(None, ask=True)
    decoder.lease = LeaseRef(SESSION, 6)
    decoder.lookup(first=1)
    assert decoder.match(16) == Match(32)


def test_a_lease_of_a_lost_session_is_not_used() -> None:
    decoder = Decoder(51, {0, 1, 2})
    decoder.lookup()
    decoder.session = LATER
    assert decoder.match() == Match(None, ask=True)
    decoder.lease = LeaseRef(LATER, 1)
    decoder.lookup()
    assert decoder.match().tokens == 48
    assert decoder.released == [LEASE]


def test_allocated_with_nothing_releases() -> None:
    decoder = Decoder(51, {0, 1, 2})
    decoder.lookup()
    assert decoder.match().tokens == 48
    assert decoder.allocate(0) == [Release(LEASE)]
    assert decoder.allocate(0) == []
    assert decoder.match().tokens == 0


def test_no_second_claim_after_a_failed_load() -> None:
    decoder = Decoder(51, {0, 1, 2})
    decoder.lookup()
    decoder.match()
    decoder.allocate(48)
    assert decoder.receive(failed=True) == [Release(LEASE)]
    assert decoder.match() == Match(0)
    assert decoder.ask() == []
    decoder.ids += 1
    assert decoder.match() == Match(0)
    assert decoder.asks == 1


def test_after_a_preemption_it_is_looked_up_again() -> None:
    decoder = Decoder(51, {0, 1, 2}, {50})
    decoder.lookup()
    decoder.match()
    decoder.allocate(50)
    decoder.receive()
    decoder.ids = 53
    assert decoder.match() == Match(None, ask=True)
    decoder.lease = LeaseRef(SESSION, 6)
    decoder.lookup()
    assert decoder.match().tokens == 50


@pytest.mark.parametrize("moment", ["asking", "answered", "matched", "settled", "loading", "loaded", "barred"])
def test_aborted_at_any_point(moment: str) -> None:
    decoder = Decoder(51, set() if moment == "settled" else {0, 1, 2})
    (ask,) = decoder.ask()
    assert isinstance(ask, Ask)
    if moment != "asking":
        decoder.answer(ask)
    if moment not in ("asking", "answered"):
        decoder.match()
    if moment in ("loading", "loaded", "barred"):
        decoder.allocate(48)
    if moment in ("loaded", "barred"):
        decoder.receive(failed=moment == "barred")
    commands = decoder.finish()
    if moment == "asking":
        assert commands == [Cancel(1)]
        decoder.answer(ask)
    if moment == "loading":
        assert commands == []
        assert decoder.tracker.requests == 1
        assert decoder.receive() == [Release(LEASE)]
    assert decoder.released == ([] if moment == "settled" else [LEASE])
    assert decoder.tracker.requests == decoder.tracker.open_leases == decoder.tracker.open_lookups == 0
    assert decoder.finish() == []


def test_a_claim_that_nobody_prepared_ends_as_failed() -> None:
    decoder = Decoder(51)
    assert decoder.allocate(20) == [Load("r", (200, 201), None, (), (), False, "not_leased")]
    assert decoder.receive(failed=True) == []


class TestStrict:
    def test_all_there(self) -> None:
        decoder = Decoder(51, {0, 1, 2}, {50}, strict=True)
        decoder.lookup()
        assert decoder.match() == Match(50)

    def test_incomplete_is_claimed_in_order_to_fail(self) -> None:
        decoder = Decoder(51, {0, 1, 2}, strict=True)
        decoder.lookup()
        match = decoder.match(16)
        assert match == Match(34, refuse="prompt_incomplete", commands=(Release(LEASE),))
        assert decoder.allocate(34) == [Load("r", (201, 202, 203), None, (), (), False, "prompt_incomplete")]
        assert decoder.receive(failed=True) == []
        assert decoder.released == [LEASE]

    def test_asked_twice_it_refuses_twice_and_releases_once(self) -> None:
        decoder = Decoder(51, {0}, strict=True)
        decoder.lookup()
        assert decoder.match().refuse == decoder.match().refuse == "prompt_incomplete"
        assert decoder.released == [LEASE]

    def test_the_reason_is_the_tiers(self) -> None:
        decoder = Decoder(51, strict=True)
        (ask,) = decoder.ask()
        assert isinstance(ask, Ask)
        decoder.answer(ask, "pool_too_small")
        assert decoder.match() == Match(50, refuse="pool_too_small")

    def test_the_reason_of_an_answer_that_was_cut_short(self) -> None:
        decoder = Decoder(51, strict=True)
        (ask,) = decoder.ask()
        assert isinstance(ask, Ask)
        pages = array("I", [1]), array("Q", [2])
        decoder.apply(decoder.tracker.answered(LookupAnswer(ask.lookup, LEASE, 1, -1, *pages, b"\0", "deadline")))
        assert decoder.match() == Match(50, refuse="deadline", commands=(Release(LEASE),))

    def test_one_id_needs_nothing(self) -> None:
        decoder = Decoder(1, strict=True)
        assert decoder.ask() == []
        assert decoder.match() == Match(0)

    def test_all_in_the_local_cache(self) -> None:
        decoder = Decoder(49, strict=True)
        assert decoder.ask(first=3) == []
        assert decoder.match(48) == Match(0)

    def test_it_waits_for_a_tier_but_not_for_ever(self) -> None:
        decoder = Decoder(51, {0, 1, 2}, {50}, strict=True)
        decoder.session = None
        decoder.ask()
        decoder.tracker.unanswerable(1)
        decoder.tracker.validate()
        assert decoder.match() == Match(None)
        decoder.session = SESSION
        decoder.now = 5.0
        assert decoder.match() == Match(None, ask=True)
        decoder.session = None
        decoder.ask()
        decoder.tracker.unanswerable(2)
        decoder.now = 6.1
        assert decoder.match() == Match(50, refuse="no_tier")

    def test_a_preempted_decoder_loads_its_prompt_again(self) -> None:
        decoder = Decoder(70, {0, 1, 2}, {50}, strict=True, prompt=51)
        decoder.lookup()
        assert decoder.match() == Match(50)
