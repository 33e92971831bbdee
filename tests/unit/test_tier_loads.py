"""Loading at the pure tier: lookups and leases."""

from __future__ import annotations

import pytest
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.attach import Alive
from pegaflow.common.wire.messages.catalogue import GONE
from pegaflow.common.wire.messages.loads import Loading
from pegaflow.services.tier import commands, events, state
from tier_script import EPOCH, Script, deltas, hits, only


def test_hits_are_a_prefix_and_a_tail_needs_all_of_it() -> None:
    script = Script().engine()
    script.save([0, 2, 9])
    answer = script.lookup([0, 1, 2], [9])
    assert (answer.full, answer.tail, answer.reason) == (1, -1, "unknown")
    script.save([1])
    answer = script.lookup([0, 1, 2], [8, 9])
    assert (answer.full, answer.tail, answer.reason) == (3, 1, "")
    assert len(answer.slots) == 4


def test_pending_is_awaited_and_unknown_is_not() -> None:
    script = Script().engine()
    grant = script.intent([0])
    assert script.lookup([0]) is None
    assert script.lookup([7]).reason == "unknown"
    done = script.hashed(script.word(grant))
    assert [answer.full for answer in hits(done)] == [1]


def test_unknown_is_awaited_when_it_is_expected_but_not_for_ever() -> None:
    script = Script().engine()
    assert script.lookup([0], expected=True, wait_ms=1000) is None
    script.now += 1.01
    answers = hits(script.feed(events.Tick()))
    assert [(a.full, a.lease, a.reason) for a in answers] == [(0, 0, "deadline")]
    assert script.tier.dump()["waiters"] == 0


def test_ticks_are_frequent_only_while_somebody_waits_for_one() -> None:
    script = Script().engine()
    tier = script.tier
    script.feed(events.Tick())  # a beat
    assert tier.rest(script.now) == state.IDLE_TICK_S
    assert tier.rest(script.now + state.BEAT_S - 0.05) == pytest.approx(0.05), "never past a beat"
    script.intent([1])  # to be acknowledged before its publisher repeats it
    assert tier.rest(script.now) == 0
    script.feed(events.Tick())
    assert tier.rest(script.now) == state.IDLE_TICK_S
    assert script.lookup([2], expected=True, wait_ms=1000) is None  # its deadline is noticed by a tick
    assert tier.rest(script.now) == 0


def test_an_idle_lease_runs_out_and_a_loading_one_does_not() -> None:
    script = Script().engine()
    script.save([0])
    idle, loading = script.lookup([0]), script.lookup([0])
    script.ask(Loading(script.looked.session, script.looked.token, u64s([loading.lease])))
    script.now += 2.1
    script.feed(events.Tick())
    assert list(script.tier.leases.open) == [loading.lease]
    assert idle.lease not in script.tier.leases.open


def test_a_lease_that_a_beat_does_not_list_is_over() -> None:
    script = Script().engine()
    script.save([0])
    answer = script.lookup([0])
    number = script.looked.lookup
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 0, 0, u64s(), u64s([answer.lease]), u64s(), number))
    assert len(script.tier.leases.open) == 1
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 0, 0, u64s(), u64s(), u64s(), number))
    assert len(script.tier.leases.open) == 0


def test_a_beat_says_nothing_of_lookups_that_were_sent_after_it_nor_of_answers_on_their_way() -> None:
    script = Script().engine()
    script.save([0])
    script.lookup([0])
    answered = script.looked.lookup
    assert script.lookup([7], expected=True) is None
    waiting = script.looked.lookup
    for old in range(3):
        script.publish(("p", "scheduler", 0), Alive(EPOCH, old, 0, u64s(), u64s(), u64s(), answered - 1))
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 9, 0, u64s(), u64s(), u64s([answered]), answered))
    assert (len(script.tier.leases.open), len(script.tier.lookups.open)) == (1, 1)
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 9, 0, u64s(), u64s(), u64s([answered]), waiting))
    assert (len(script.tier.leases.open), len(script.tier.lookups.open)) == (1, 0)


def test_the_death_of_the_scheduler_half_ends_its_lookups_and_leases() -> None:
    script = Script().engine()
    script.save([0])
    script.lookup([0])
    assert script.lookup([5], expected=True) is None
    member = script.members["p", "scheduler", 0]
    out = script.feed(events.Proven(member.session, member.member))
    assert [answer.reason for answer in hits(out)] == ["cancelled"]
    dump = script.tier.dump()
    assert (dump["leases"], dump["lookups"], dump["references"]) == (0, 0, 0)


def test_pages_whose_checksum_cannot_be_taken_are_not_saved_and_leave_nothing() -> None:
    script = Script().engine()
    job = only(commands.Hash, script.word(script.intent([1, 2])))
    out = script.feed(events.Hashed(job.job, None))
    assert [state for _, state in deltas(out)] == [GONE, GONE]
    dump = script.tier.dump()
    assert (dump["pages"], dump["references"], dump["hashing"]) == ({}, 0, 0)
    assert dump["free_bytes"] == dump["backed_bytes"]
    script.save([1, 2])
    assert script.sealed() == {1, 2}
