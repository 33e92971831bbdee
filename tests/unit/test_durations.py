"""The durations of docs/protocol.md 6 only work together: which must be shorter than which."""

from __future__ import annotations

from pegaflow.common.bus import reliable
from pegaflow.connector import link, loading, scheduler_bus, silence, worker
from pegaflow.services.tier import carrier, fetches, leases, lookups, probes, service, sessions, state


def test_a_read_is_given_up_before_its_pin_runs_out_and_the_owner_waits_longer() -> None:
    assert fetches.READ_DEADLINE_S < fetches.PIN_TTL_S
    assert carrier.PIN_BUDGET_S < fetches.READ_DEADLINE_S
    assert leases.MARGIN_S > 0


def test_signs_of_life_come_often_enough_for_what_depends_on_them() -> None:
    assert 2 * link.ALIVE_S < sessions.PROMISE_STALE_S, "one lost beat is no silence"
    assert 2 * link.ALIVE_S < leases.IDLE_S, "a lease survives a lost beat"
    assert 2 * state.BEAT_S < silence.SILENT_S, "a tier may lose a beat before its engines stop using it"
    assert service.HELLO_S <= state.BEAT_S


def test_progress_is_acknowledged_before_it_is_repeated() -> None:
    assert service.TICK_S < reliable.REPEAT_S < reliable.REPEAT_MAX_S


def test_an_idle_tier_ticks_often_enough_for_its_beats_and_what_runs_out() -> None:
    assert service.TICK_S < state.IDLE_TICK_S < state.BEAT_S
    assert min(leases.IDLE_S, leases.MARGIN_S, sessions.PROMISE_STALE_S) > state.IDLE_TICK_S


def test_a_hop_keeps_something_of_the_budget_for_the_way_back() -> None:
    assert lookups.HOP_S > service.TICK_S, "a lookup that is out of time is noticed by the tick"
    assert lookups.HOP_S < scheduler_bus.RPC_MARGIN_S < loading.RPC_MARGIN_S


def test_a_grant_is_waited_for_longer_than_one_repetition_takes_to_start() -> None:
    assert worker.GRANT_WAIT_S >= reliable.REPEAT_S


def test_the_dead_are_found_before_their_promises_would_be_distrusted() -> None:
    assert probes.PROBE_S < sessions.PROMISE_STALE_S
