"""Fetching at the pure tier: other nodes' pages, pins for theirs, and the snapshot that they see."""

from __future__ import annotations

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, SEALED, Located, Sync
from pegaflow.common.wire.messages.loads import Lookup
from pegaflow.common.wire.messages.saves import GRANTED
from pegaflow.common.wire.messages.transfer import Pin
from pegaflow.services.tier import commands, events
from tier_script import Script, checksum, hits, key, located, only, pinned


def test_an_answer_that_ends_with_a_hole_ends_the_lookup_there() -> None:
    script = Script(metaserver=True).engine()
    member = script.members["p", "scheduler", 0]
    keys = [key(n) for n in (1, 2, 3)]
    out = script.feed(events.Asked("asker", Lookup(member.session, member.token, 1, "r", keys, [key(8), key(9)], 1000, False)))
    ask = only(commands.Locate, out)
    assert (list(ask.keys), ask.tails) == ([*keys, key(8), key(9)], 2)
    short = Located(bytes([SEALED, GONE]), 1, u32s([0, NO_OWNER]), ["b"], u64s([5]), ["tcp://b"])
    pin = only(commands.PinAt, script.feed(events.LocateAnswer(ask.ask, short)))
    assert list(pin.keys) == [key(1)]


@pytest.mark.parametrize("states", [b"", bytes([SEALED])])
def test_an_answer_that_ends_without_a_hole_is_a_failed_one(states: bytes) -> None:
    """Or the tier would ask for what is missing again and again."""
    script = Script(metaserver=True).engine()
    member = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(member.session, member.token, 1, "r", [key(1), key(2)], [], 1000, False)))
    ask = only(commands.Locate, out)
    short = Located(states, 1, u32s([0] * len(states)), ["b"], u64s([5]), ["tcp://b"])
    out = script.feed(events.LocateAnswer(ask.ask, short))
    assert not [c for c in out if isinstance(c, commands.Locate | commands.PinAt)]
    assert [answer.reason for answer in hits(out)] == [ErrorCode.BAD_MESSAGE]


def test_a_page_of_another_node_is_fetched_and_its_bytes_are_believed_only_with_their_checksum() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1), key(2)], [], 1000, False)))
    out = script.feed(located(only(commands.Locate, out), ["b"]))
    pin = only(commands.PinAt, out)
    assert list(pin.keys) == [key(1), key(2)]
    page_slots = [script.tier.pages.index[key(n)].slots[0] for n in (1, 2)]
    sums = [checksum(f"page {page_slots[0]}"), checksum("something else")]
    out = script.feed(events.PinAnswer(pin.fetch, pinned(pin, sums), script.now))
    read = only(commands.Read, out)
    assert list(read.local) == [slot * GRANULE for slot in page_slots]
    out = script.feed(events.ReadEnded(read.fetch, "done"))
    assert only(commands.UnpinAt, out).lease == 3
    done = script.hashed(out)
    assert script.sealed() == {1}
    assert script.tier.counts["bad_checksum"] == 1
    assert [(answer.full, answer.reason) for answer in hits(done)] == [(1, "bad_checksum")]


def test_the_next_owner_is_asked_when_the_first_does_not_deliver() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 5000, False)))
    out = script.feed(located(only(commands.Locate, out), ["b", "c"]))
    first = only(commands.PinAt, out)
    script.now += 2.1
    out = script.feed(events.Tick())
    second = only(commands.PinAt, out)
    assert (first.endpoint, second.endpoint) == ("tcp://b", "tcp://c")


def test_a_read_past_its_deadline_keeps_its_slots_until_it_has_ended() -> None:
    script = Script(pages=16, metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 3000, False)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, pinned(pin, [b"c" * 16]), script.now)))
    slot = read.local[0] // GRANULE
    script.now += 2.1
    out = script.feed(events.Tick())
    assert only(commands.GiveUp, out).fetch == read.fetch
    assert [answer.full for answer in hits(out)] == [0], "who waited is told"
    script.now += 60
    granted = script.intent(list(range(20, 36)))
    assert slot not in granted.slots and list(granted.statuses).count(GRANTED) == 15
    script.feed(events.ReadEnded(read.fetch, "landed_late"))
    assert slot in script.intent([60]).slots


def test_a_read_that_ends_after_its_pin_ran_out_does_not_count() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 9000, False)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    answer = pinned(pin, [checksum(f"page {script.tier.pages.index[key(1)].slots[0]}")])
    read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, answer, script.now - 3.9)))
    script.now += 0.2
    script.feed(events.ReadEnded(read.fetch, "done"))
    assert script.sealed() == set()


def test_a_pin_shows_what_is_there_and_holds_it() -> None:
    script = Script(pages=16).engine()
    script.save([1, 2])
    answer = script.ask(Pin("b", [key(1), key(9), key(2)], 1, 1000))
    assert list(answer.positions) == [0, 2] and answer.metadata == b"blob"
    script.now += 1.9  # the owner adds a margin of one second to the reader's second
    script.feed(events.Tick())
    assert script.tier.dump()["pins"] == 1
    script.now += 0.2
    script.feed(events.Tick())
    assert script.tier.dump()["pins"] == 0


def test_a_snapshot_has_the_head_at_which_its_walk_began() -> None:
    script = Script().engine()
    script.save([1, 2])
    head = script.tier.pages.announced.head
    chunk = script.ask(Sync(5, 1, 0))
    assert (chunk.head, chunk.chunks, sorted(chunk.keys)) == (head, 1, [key(1), key(2)])
    assert set(chunk.states) == {SEALED}
    stale = script.ask(Sync(5, 1, 0 + 1))
    assert stale.code == "stale_sync"


def test_an_expected_lookup_asks_the_metaserver_again_after_an_owner_did_not_deliver() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 5000, True)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    out = script.feed(events.PinAnswer(pin.fetch, RemoteError("wrong_epoch", "b has restarted"), script.now))
    assert only(commands.ForgetPeer, out).peer == f"b/{5:016x}"
    again = only(commands.Locate, out)
    assert list(again.keys) == [key(1)]
    assert script.feed(located(again, ["b"])) == [], "the same owner is not asked again"
    script.now += 0.11
    assert list(only(commands.Locate, script.feed(events.Tick())).keys) == [key(1)]


def test_who_waited_for_anothers_fetch_asks_for_itself_when_that_fails() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("first", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 5000, False)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    second = Lookup(attached.session, attached.token, 2, "r", [key(1)], [], 5000, False)
    assert script.feed(events.Asked("second", second)) == []
    out = script.feed(events.PinAnswer(pin.fetch, RemoteError("unreachable", "b is gone"), script.now))
    assert [answer.lookup for answer in hits(out)] == [1]
    assert list(only(commands.Locate, out).keys) == [key(1)]
