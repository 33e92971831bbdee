"""Saving at the pure tier: intents, grants, seals, and who goes for them."""

from __future__ import annotations

from typing import Any

import pytest
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.attach import Ack, Alive
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED
from pegaflow.common.wire.messages.loads import Loading, Release
from pegaflow.common.wire.messages.saves import GRANTED, HAVE, NO_SPACE, REFUSED, Abandoned, Grant, Intent
from pegaflow.common.wire.messages.saves import PENDING as ELSEWHERE
from pegaflow.services.tier import commands, events
from tier_script import EPOCH, Script, deltas, key


def test_the_table_stands_before_the_grant_and_sealed_before_its_delta() -> None:
    script = Script().engine()
    keys = [key(1)]
    out = script.publish(("p", "scheduler", 0), Intent(EPOCH, 1, keys, u32s([16]), b"", ["r"], u32s([0])))
    kinds = [type(c).__name__ if not isinstance(c, commands.Publish) else c.message.KIND for c in out]
    assert kinds == ["Cut", "Table", "grant", "intent_seen", "delta"]
    assert out[1].generation == 1  # type: ignore[union-attr]
    assert deltas(out) == [(key(1), PENDING)]
    grant = next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))
    done = script.hashed(script.word(grant))
    assert [type(c).__name__ for c in done] == ["Table", "Publish"]
    assert deltas(done) == [(key(1), SEALED)]


def test_nothing_is_granted_before_every_writer_is_attached() -> None:
    script = Script(shards=2)
    script.attach()
    script.attach(role="rank", rank=0)
    assert list(script.intent([1]).statuses) == [REFUSED]
    script.attach(role="rank", rank=1)
    assert list(script.intent([1]).statuses) == [GRANTED]


def test_a_key_is_sealed_when_all_shards_are_written() -> None:
    script = Script(shards=2).engine()
    grant = script.intent([1])
    assert script.hashed(script.word(grant, rank=0)) == []
    assert script.sealed() == set()
    script.hashed(script.word(grant, rank=1))
    assert script.sealed() == {1}


def test_one_abandoned_shard_leaves_no_trace_once_the_other_has_spoken() -> None:
    script = Script(shards=2).engine()
    grant = script.intent([1])
    out = script.word(grant, rank=0, kind=Abandoned)
    assert deltas(out) == [(key(1), GONE)]
    assert script.tier.dump()["aside"] == 1, "rank 1 may still write its slot"
    script.word(grant, rank=1)
    dump = script.tier.dump()
    assert (dump["aside"], dump["grants"], dump["pages"]) == (0, 0, {})


def test_what_is_there_costs_no_copy_and_what_is_promised_is_not_promised_twice() -> None:
    script = Script().engine().engine("q")
    script.save([1])
    script.intent([2])
    assert list(script.intent([1, 2, 3], "q").statuses) == [HAVE, ELSEWHERE, GRANTED]


@pytest.mark.parametrize(
    "changes",
    [{"grant": 99}, {"epoch": 1}, {"generations": u64s([5])}, {"marks": b"other..!"}, {"slots": u32s([9])}, {"session": 5}],
)
def test_a_word_that_does_not_fit_exactly_is_ignored(changes: dict[str, Any]) -> None:
    script = Script().engine()
    grant = script.intent([1])
    assert script.hashed(script.word(grant, changes=changes)) == []
    assert script.tier.dump()["pages"] == {"pending": 1}


def test_a_gap_in_the_numbers_is_not_applied_and_the_next_one_is_named_again() -> None:
    script = Script().engine()
    member = script.members["p", "scheduler", 0]
    late = Intent(EPOCH, 9, [key(1)], u32s([16]), b"", ["r"], u32s([0]))
    out = script.feed(events.Published(member.session, member.member, 5, member.token, late))
    assert next(c.message for c in out if isinstance(c, commands.Publish)) == Ack(member.member, 1)
    assert script.tier.dump()["pages"] == {}


def test_a_prompt_larger_than_the_pool_keeps_its_head() -> None:
    script = Script(pages=16).engine()
    script.save([100, 101, 102], request="older")
    script.now += 60  # past what a save keeps anyway
    statuses = script.intent(list(range(20))).statuses
    granted = [n for n, status in enumerate(statuses) if status == GRANTED]
    assert granted == list(range(len(granted))) and len(granted) == 16
    assert set(statuses[len(granted) :]) == {NO_SPACE}
    again = Script(pages=16).engine()
    for step in range(5):
        again.save(list(range(4 * step, 4 * step + 4)))
        again.now += 60
    assert again.sealed() == set(range(16)), "later steps of a request do not evict its earlier ones"


def test_children_are_evicted_before_their_parents() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)), request="old")
    answer = script.lookup(list(range(16)))
    script.ask(Release(script.looked.session, script.looked.token, u64s([answer.lease])))
    script.now += 60
    script.save([50, 51, 52], request="new")
    assert script.sealed() == set(range(13)) | {50, 51, 52}


def test_a_leased_page_is_not_evicted() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)), request="old")
    answer = script.lookup(list(range(16)))
    script.ask(Loading(script.looked.session, script.looked.token, u64s([answer.lease])))
    script.now += 60
    assert set(script.intent([50, 51], request="new").statuses) == {NO_SPACE}
    script.ask(Release(script.looked.session, script.looked.token, u64s([answer.lease])))
    assert set(script.intent([50, 51], request="new").statuses) == {GRANTED}


def test_another_page_size_gets_its_share() -> None:
    script = Script(pages=32).engine()
    script.save(list(range(32)), request="old")
    script.now += 60
    script.attach("big", page_bytes=u32s([2 * GRANULE]), fingerprint=b"g" * 16, base=b"g" * 16)
    script.attach("big", "rank", page_bytes=u32s([2 * GRANULE]), base=b"g" * 16)
    member = script.members["big", "scheduler", 0]
    wanted = Intent(EPOCH, 1, [b"g" * 48], u32s([16]), b"", ["r"], u32s([0]))
    out = script.feed(events.Published(member.session, member.member, 1, member.token, wanted))
    grant = next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))
    assert list(grant.statuses) == [GRANTED]
    retired = [c for c in out if isinstance(c, commands.Table) and c.generation and not c.entry.key]
    assert retired, "every slot start of the reused slab got a new generation"


def test_a_silent_session_loses_its_promises_but_not_its_slots_and_may_still_win() -> None:
    script = Script().engine().engine("q")
    grant = script.intent([1])
    script.now += 1.6
    script.publish(("q", "scheduler", 0), Alive(EPOCH, 0, 0))
    script.publish(("q", "rank", 0), Alive(EPOCH, 0, 0))
    assert deltas(script.feed(events.Tick())) == [(key(1), GONE)]
    second = script.intent([1], "q")
    assert list(second.statuses) == [GRANTED] and second.slots != grant.slots
    script.hashed(script.word(grant))
    assert script.sealed() == {1}, "the first sealed wins, whoever it is"
    script.hashed(script.word(second, "q"))
    assert script.tier.counts["duplicates"] == 1
    assert script.tier.dump()["aside"] == 0
    assert script.lookup([1]).full == 1, "the sealed page is still there when the duplicate has gone"


@pytest.mark.parametrize(("still", "lives"), [("scheduler", "rank"), ("rank", "scheduler")])
def test_one_process_that_lives_does_not_speak_for_another_that_stands_still(still: str, lives: str) -> None:
    """It is silent all the time, not from a tick to the next sign of life; what it promises meanwhile does not count either."""
    script = Script().engine()

    def silent() -> bool:
        (session,) = script.tier.dump()["sessions"]
        return bool(session["stale"])

    script.now += 1.6
    for number in (1, 2):
        script.publish(("p", lives, 0), Alive(EPOCH, 0, 0))
        script.feed(events.Tick())
        assert silent()
        script.publish(("p", lives, 0), Alive(EPOCH, 0, 0))
        assert silent()
        if lives == "scheduler":
            script.intent([number])
            assert deltas(script.feed(events.Tick())) == [(key(number), GONE)]
        script.now += 0.4
    script.publish(("p", still, 0), Alive(EPOCH, 0, 0))
    assert not silent()


def test_a_grant_that_a_rank_never_saw_is_ended_by_its_alive() -> None:
    script = Script().engine()
    grant = script.intent([1])
    script.publish(("p", "rank", 0), Alive(EPOCH, 0, 0))
    assert script.tier.dump()["grants"] == 1, "it says that it has not seen the event yet"
    script.publish(("p", "rank", 0), Alive(EPOCH, 99, 0, u64s([grant.grant])))
    assert script.tier.dump()["grants"] == 1, "it lists the grant"
    script.publish(("p", "rank", 0), Alive(EPOCH, 99, 0))
    assert script.tier.dump()["pages"] == {}
