"""Fetching in the pure tier when an owner does not deliver, or lies: typed, the next one is tried, others are not held up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.catalogue import SEALED, Located
from pegaflow.common.wire.messages.loads import Cancel, Hits, Lookup
from pegaflow.common.wire.messages.transfer import Pinned
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.mover.events import Outcome
from pegaflow.services.tier.open_lookup import REFUSED_S
from tier_script import Script, checksum, hits, key, located, only, pinned


class Reader(Script):
    """A tier with one engine, and what it is told by owners."""

    def __init__(self, pages: int = 64) -> None:
        super().__init__(pages, metaserver=True)
        self.engine()

    def looks(self, number: int, keys: list[int], wait_ms: int = 9000, expected: bool = False) -> commands.Locate:
        member = self.members["p", "scheduler", 0]
        names = [key(n) for n in keys]
        message = Lookup(member.session, member.token, number, "r", names, [], wait_ms, expected)
        locate: commands.Locate = only(commands.Locate, self.feed(events.Asked(f"asker {number}", message)))
        return locate

    def slots(self, pin: commands.PinAt) -> list[int]:
        return [self.tier.pages.index[name].slots[0] for name in pin.keys]

    def truth(self, pin: commands.PinAt) -> Pinned:
        """The owner's answer, with the checksums of what will arrive."""
        return pinned(pin, [checksum(f"page {slot}") for slot in self.slots(pin)])

    def answered(self, pin: commands.PinAt, answer: Pinned | PegaflowError) -> list[commands.Command]:
        return self.feed(events.PinAnswer(pin.fetch, answer, self.now))

    def delivered(self, pin: commands.PinAt) -> list[commands.Command]:
        """Pin, READ and checksum as they should be. Returns all commands."""
        out = self.answered(pin, self.truth(pin))
        read = only(commands.Read, out)
        assert (read.peer, list(read.lengths)) == (self.truth(pin).agent, [GRANULE] * len(pin.keys))
        ended = self.feed(events.ReadEnded(read.fetch, "done"))
        return [*out, *ended, *self.hashed(ended)]


def pins(out: list[commands.Command]) -> list[commands.PinAt]:
    return [command for command in out if isinstance(command, commands.PinAt)]


def answers(out: list[commands.Command]) -> list[tuple[Any, int]]:
    found = [c for c in out if isinstance(c, commands.Reply) and isinstance(c.message, Hits)]
    return [(reply.asker, reply.message.full) for reply in found if isinstance(reply.message, Hits)]


FAILURES = [
    outcome for outcome in Outcome if outcome not in (Outcome.DONE, Outcome.LANDED_LATE, Outcome.FAILED_LATE, Outcome.REAPED)
]


@pytest.mark.parametrize("failure", [*FAILURES, "no_mover", "internal"])
def test_whatever_a_read_ends_with_the_next_owner_is_tried(failure: str) -> None:
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2]), ["b", "c"])))
    read = only(commands.Read, reader.answered(first, reader.truth(first)))
    out = reader.feed(events.ReadEnded(read.fetch, failure))
    assert only(commands.UnpinAt, out).endpoint == "tcp://b"
    (second,) = pins(out)
    assert (second.endpoint, list(second.keys)) == ("tcp://c", [key(1), key(2)])
    assert answers(reader.delivered(second)) == [("asker 1", 2)]
    assert reader.tier.counts["fetch_failed"] == 2


@pytest.mark.parametrize(
    "code", [ErrorCode.WRONG_EPOCH, ErrorCode.UNREACHABLE, ErrorCode.DEADLINE, ErrorCode.NOT_READY, ErrorCode.BAD_MESSAGE]
)
def test_whatever_a_pin_is_refused_with_the_next_owner_is_tried(code: ErrorCode) -> None:
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1]), ["b", "c"])))
    out = reader.answered(first, RemoteError(code, "test"))
    assert not [c for c in out if isinstance(c, commands.UnpinAt)], "nothing was pinned"
    (second,) = pins(out)
    assert second.endpoint == "tcp://c"
    assert answers(reader.delivered(second)) == [("asker 1", 1)]


def test_without_another_owner_the_lookup_says_why() -> None:
    reader = Reader()
    (pin,) = pins(reader.feed(located(reader.looks(1, [1]), ["b"])))
    read = only(commands.Read, reader.answered(pin, reader.truth(pin)))
    out = reader.feed(events.ReadEnded(read.fetch, "peer_lost"))
    assert [(answer.full, answer.reason) for answer in hits(out)] == [(0, "peer_lost")]
    assert reader.tier.dump()["free_bytes"] == reader.tier.dump()["backed_bytes"]


@pytest.mark.parametrize(
    ("code", "healed"), [(ErrorCode.UNREACHABLE, True), (ErrorCode.GONE, True), (ErrorCode.WRONG_EPOCH, False)]
)
def test_the_only_owner_of_what_is_expected_is_asked_again_after_a_while(code: ErrorCode, healed: bool) -> None:
    """One that stood still goes on; one of another life or with other bytes does not become what was named."""
    reader = Reader()
    (pin,) = pins(reader.feed(located(reader.looks(1, [1], expected=True), ["b"])))
    failed_at, asked_at = reader.now, None
    out = reader.answered(pin, RemoteError(code, "test"))
    while asked_at is None and reader.now < failed_at + 3.0:
        assert not hits(out), "it goes on waiting"
        for locate in [command for command in out if isinstance(command, commands.Locate)]:
            out = reader.feed(located(locate, ["b"]))
            if pins(out):
                asked_at = reader.now
        reader.now += 0.02
        out = reader.feed(events.Tick())
    assert (asked_at is not None) == healed
    assert asked_at is None or REFUSED_S <= asked_at - failed_at < REFUSED_S + 0.2


LIES: dict[str, dict[str, Any]] = {
    "another peer's name": {"agent": f"c/{5:016x}"},
    "its name in another life": {"agent": f"b/{6:016x}"},
    "longer pages": {"lengths": u32s([GRANULE + 1] * 2)},
    "shorter pages": {"lengths": u32s([GRANULE - 1] * 2)},
    "pages of no bytes": {"lengths": u32s([0] * 2)},
    "keys that were not asked for": {"positions": u32s([2, 3])},
    "as if each page had two shards": {
        "lengths": u32s([1] * 4),
        "offsets": u64s([0] * 4),
        "checksums": b"c" * 64,
    },
    "nothing is there": {
        "positions": u32s(),
        "rows": u32s(),
        "offsets": u64s(),
        "lengths": u32s(),
        "checksums": b"",
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_a_pin_that_does_not_fit_costs_its_owner_the_fetch(lie: str) -> None:
    """What can be seen before a byte moves: no READ is posted, the pin is let go, the next owner is asked."""
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2]), ["b", "c"])))
    answer = replace(reader.truth(first), **LIES[lie])
    assert answer.check() is None, "the wire takes it"
    out = reader.answered(first, answer)
    assert not [c for c in out if isinstance(c, commands.Read)]
    assert only(commands.UnpinAt, out).lease == answer.lease
    (second,) = pins(out)
    assert second.endpoint == "tcp://c"
    assert answers(reader.delivered(second)) == [("asker 1", 2)]


def test_one_key_named_twice_is_one_page_and_its_checksum_decides() -> None:
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2]), ["b", "c"])))
    out = reader.answered(first, replace(reader.truth(first), positions=u32s([0, 0])))
    read = only(commands.Read, out)
    assert len(read.local) == 1
    out = reader.hashed(reader.feed(events.ReadEnded(read.fetch, "done")))
    (second,) = pins(out)
    assert (second.endpoint, list(second.keys)) == ("tcp://c", [key(1), key(2)])
    assert answers(reader.delivered(second)) == [("asker 1", 2)]


@pytest.mark.parametrize("offsets", [[1 << 20, 0], [(1 << 64) - GRANULE, 0], [1, (1 << 20) - 1]])
def test_offsets_go_to_the_mover_as_they_came_with_the_bounds_to_check_them(offsets: list[int]) -> None:
    """The mover refuses them before anything moves (test_mover_reads); then the next owner is asked."""
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2]), ["b", "c"])))
    read = only(commands.Read, reader.answered(first, replace(reader.truth(first), offsets=u64s(offsets))))
    assert (list(read.remote), read.base, read.pool_bytes) == (offsets, 0, 1 << 20)
    (second,) = pins(reader.feed(events.ReadEnded(read.fetch, Outcome.BAD_DESCRIPTOR)))
    assert answers(reader.delivered(second)) == [("asker 1", 2)]


def test_pages_with_lying_checksums_are_had_elsewhere_and_the_honest_ones_kept() -> None:
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2, 3]), ["b", "c"])))
    truth = reader.truth(first)
    lying = truth.checksums[:16] + b"l" * 16 + truth.checksums[32:]
    out = reader.answered(first, replace(truth, checksums=lying))
    out = reader.feed(events.ReadEnded(only(commands.Read, out).fetch, "done"))
    out = reader.hashed(out)
    assert reader.sealed() == {1, 3}
    assert answers(out) == []
    (second,) = pins(out)
    assert (second.endpoint, list(second.keys)) == ("tcp://c", [key(2)])
    assert answers(reader.delivered(second)) == [("asker 1", 3)]
    assert reader.tier.counts["bad_checksum"] == 1


def test_when_no_checksum_can_be_taken_nothing_is_believed() -> None:
    reader = Reader()
    (pin,) = pins(reader.feed(located(reader.looks(1, [1]), ["b"])))
    out = reader.answered(pin, reader.truth(pin))
    job = only(commands.Hash, reader.feed(events.ReadEnded(only(commands.Read, out).fetch, "done"))).job
    assert answers(reader.feed(events.Hashed(job, None))) == [("asker 1", 0)]
    assert reader.sealed() == set()


def test_a_silent_owner_delays_no_lookup_for_pages_of_others() -> None:
    reader = Reader()
    (silent,) = pins(reader.feed(located(reader.looks(1, [1, 2]), ["b"])))
    (other,) = pins(reader.feed(located(reader.looks(2, [11, 12]), ["c"])))
    assert answers(reader.delivered(other)) == [("asker 2", 2)]
    assert silent.fetch in reader.tier.fetches.open


def test_within_one_lookup_pages_of_others_are_here_before_the_silent_owner_is_given_up() -> None:
    reader = Reader()
    ask = reader.looks(1, [1, 2, 3, 4])
    owners = u32s([0, 1, 1, 0])  # 1 and 4 at b, 2 and 3 at c
    answer = Located(bytes([SEALED] * 4), 1, owners, ["b", "c"], u64s([5, 5]), ["tcp://b", "tcp://c"])
    out = reader.feed(events.LocateAnswer(ask.ask, answer))
    asked = {command.endpoint: command for command in pins(out)}
    assert sorted((c.endpoint, list(c.keys)) for c in pins(out)) == [
        ("tcp://b", [key(1)]),
        ("tcp://b", [key(4)]),
        ("tcp://c", [key(2), key(3)]),
    ]
    reader.delivered(asked["tcp://c"])
    assert reader.sealed() == {2, 3}
    assert len(reader.tier.fetches.open) == 2


def test_a_page_given_up_at_one_owner_comes_from_the_next_into_other_slots() -> None:
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1]), ["b", "c"])))
    read = only(commands.Read, reader.answered(first, reader.truth(first)))
    reader.now += 2.1
    out = reader.feed(events.Tick())
    assert only(commands.GiveUp, out).fetch == read.fetch
    (second,) = pins(out)
    assert answers(reader.delivered(second)) == [("asker 1", 1)]
    # The first READ may still land: its slot is nobody's until it has ended.
    quarantined = read.local[0] // GRANULE
    assert reader.tier.pages.index[key(1)].slots[0] != quarantined
    assert quarantined not in reader.intent(list(range(20, 84))).slots
    reader.feed(events.ReadEnded(read.fetch, Outcome.REAPED))
    assert reader.tier.fetches.open == {}
    assert reader.sealed() >= {1}


@pytest.mark.parametrize("answer", [None, "late"])
def test_a_pin_that_is_never_answered_is_given_up_and_counted_when_it_comes(answer: str | None) -> None:
    reader = Reader()
    (first,) = pins(reader.feed(located(reader.looks(1, [1]), ["b", "c"])))
    truth = reader.truth(first)
    reader.now += 2.1
    (second,) = pins(reader.feed(events.Tick()))
    if answer is not None:
        assert reader.answered(first, truth) == []
        assert reader.tier.counts["late_pins"] == 1
    assert answers(reader.delivered(second)) == [("asker 1", 1)]


def test_what_is_fetched_comes_in_batches_and_the_first_is_pinned_before_the_last_has_slots() -> None:
    reader = Reader()
    reader.tier.fetches.min_batch_bytes = 3 * GRANULE
    out = reader.feed(located(reader.looks(1, list(range(1, 9))), ["b"]))
    batches = pins(out)
    while any(isinstance(command, commands.Resume) for command in out):
        out = reader.feed(events.Resumed())
        batches += pins(out)
    assert [len(pin.keys) for pin in batches] == [3, 3, 2]
    for pin in batches:
        reader.delivered(pin)
    assert answers(reader.last) == [("asker 1", 8)]


def test_the_next_batch_comes_without_its_turn_when_the_one_before_has_arrived() -> None:
    reader = Reader()
    reader.tier.fetches.min_batch_bytes = GRANULE
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2]), ["b"])))
    (second,) = pins(reader.delivered(first))
    assert (list(first.keys), list(second.keys)) == ([key(1)], [key(2)])
    assert not pins(reader.feed(events.Resumed())), "it was begun twice"
    assert answers(reader.delivered(second)) == [("asker 1", 2)]


def test_a_lookup_that_is_over_fetches_no_further_batch() -> None:
    reader = Reader()
    reader.tier.fetches.min_batch_bytes = GRANULE
    reader.feed(located(reader.looks(1, [1, 2]), ["b"]))
    member = reader.members["p", "scheduler", 0]
    reader.feed(events.Asked("asker", Cancel(member.session, member.token, u64s([1]))))
    assert not pins(reader.feed(events.Resumed()))


def test_a_batch_without_space_cuts_the_answer_to_what_came_before() -> None:
    reader = Reader(pages=2)
    reader.tier.fetches.min_batch_bytes = 2 * GRANULE
    (first,) = pins(reader.feed(located(reader.looks(1, [1, 2, 3, 4, 5]), ["b"])))
    assert not [c for c in reader.feed(events.Resumed()) if isinstance(c, commands.PinAt | commands.Resume)]
    assert answers(reader.delivered(first)) == [("asker 1", 2)]
    assert hits(reader.last)[0].reason == ErrorCode.NO_SPACE
