"""The rules of READ jobs and of their movers: events in, commands out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule
from pegaflow.services.tier.mover.events import (
    Announce,
    Command,
    DeadlinePassed,
    GiveUpIn,
    Kill,
    Limits,
    MoverNumber,
    MoverReady,
    MoverReaped,
    Outcome,
    Post,
    ReadAsked,
    ReadEnded,
    Recycle,
    Spawn,
    Start,
    Stop,
    Tell,
    Tick,
)
from pegaflow.services.tier.mover.jobs import MAX_OPEN_JOBS, MAX_PEER_JOBS, MoverJobs

LIMITS = Limits(recycle_after_s=30, retire_grace_s=4, retire_limit_s=8, respawn_first_s=1, respawn_max_s=5, healthy_after_s=10)
ONE, TWO, THREE = MoverNumber(1), MoverNumber(2), MoverNumber(3)


def ended(job: int, outcome: Outcome = Outcome.DONE, *, mover: MoverNumber = ONE, quiet: bool = True) -> ReadEnded:
    return ReadEnded(mover, job, outcome, "", quiet)


def outcomes(commands: list[Command]) -> list[tuple[int, Outcome]]:
    return [(command.job, command.outcome) for command in commands if isinstance(command, Tell)]


@pytest.fixture
def jobs() -> MoverJobs:
    """One ready mover."""
    state = MoverJobs(LIMITS)
    assert state.handle(Start(), 0) == [Spawn(ONE)]
    assert state.handle(MoverReady(ONE), 0) == [Announce(ONE)]
    assert state.ready
    return state


def test_a_read_is_posted_and_told_once(jobs: MoverJobs) -> None:
    assert jobs.handle(ReadAsked(7, "b"), 1) == [Post(ONE, 7)]
    assert (jobs.open, jobs.given_up, jobs.holds(7)) == (1, 0, True)
    assert outcomes(jobs.handle(ended(7), 2)) == [(7, Outcome.DONE)]
    assert not jobs.holds(7)
    assert jobs.handle(ended(7), 3) == []


def test_a_job_number_in_use_is_refused(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    with pytest.raises(ValueError, match="7"):
        jobs.handle(ReadAsked(7, "b"), 1)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome.DONE, Outcome.LANDED_LATE),
        (Outcome.PEER_LOST, Outcome.FAILED_LATE),
        (Outcome.PEER_UNREACHABLE, Outcome.FAILED_LATE),
    ],
)
def test_a_given_up_read_is_held_until_it_ends(jobs: MoverJobs, outcome: Outcome, told: Outcome) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    assert jobs.handle(DeadlinePassed(7), 3) == [GiveUpIn(ONE, 7)]
    assert jobs.handle(DeadlinePassed(7), 3) == []
    assert (jobs.open, jobs.given_up, jobs.holds(7)) == (0, 1, True)
    assert outcomes(jobs.handle(ended(7, outcome), 60)) == [(7, told)]
    assert not jobs.holds(7)


def test_a_kill_alone_frees_nothing(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    jobs.handle(ReadAsked(8, "c"), 1)
    jobs.handle(DeadlinePassed(7), 3)
    assert jobs.handle(Stop(), 4) == [Kill(ONE)]
    assert jobs.holds(7)
    assert jobs.holds(8)
    assert outcomes(jobs.handle(MoverReaped(ONE), 5)) == [(7, Outcome.REAPED), (8, Outcome.MOVER_DIED)]
    assert jobs.movers == 0


def test_a_peer_with_a_given_up_read_gets_no_new_ones(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    jobs.handle(DeadlinePassed(7), 3)
    assert outcomes(jobs.handle(ReadAsked(8, "b"), 3)) == [(8, Outcome.BUSY_PEER)]
    assert jobs.handle(ReadAsked(9, "c"), 3) == [Post(ONE, 9)]
    jobs.handle(ended(7), 4)
    assert jobs.handle(ReadAsked(8, "b"), 4) == [Post(ONE, 8)]


def test_too_many_reads_are_answered_not_queued(jobs: MoverJobs) -> None:
    for job in range(MAX_OPEN_JOBS):
        assert jobs.handle(ReadAsked(job, f"b{job // MAX_PEER_JOBS}"), 1) == [Post(ONE, job)]
    assert outcomes(jobs.handle(ReadAsked(MAX_OPEN_JOBS, "c"), 1)) == [(MAX_OPEN_JOBS, Outcome.BUSY_PEER)]
    jobs.handle(ended(0), 2)
    assert jobs.handle(ReadAsked(MAX_OPEN_JOBS, "c"), 2) == [Post(ONE, MAX_OPEN_JOBS)]


def test_one_peer_has_a_share_of_the_reads_and_the_others_go_on(jobs: MoverJobs) -> None:
    for job in range(MAX_PEER_JOBS):
        jobs.handle(ReadAsked(job, "b"), 1)
    over = MAX_PEER_JOBS
    assert outcomes(jobs.handle(ReadAsked(over, "b"), 1)) == [(over, Outcome.BUSY_PEER)]
    assert jobs.handle(ReadAsked(over, "c"), 1) == [Post(ONE, over)]
    jobs.handle(ended(0), 2)
    assert jobs.handle(ReadAsked(over + 1, "b"), 2) == [Post(ONE, over + 1)]
    jobs.validate()


def test_more_in_quarantine_than_the_pool_can_spare_costs_the_mover_at_once() -> None:
    jobs = MoverJobs(LIMITS, quarantine_bytes=100)
    jobs.handle(Start(), 0)
    jobs.handle(MoverReady(ONE), 0)
    for job, size in ((1, 60), (2, 40), (3, 1)):
        jobs.handle(ReadAsked(job, f"peer {job}", size), 1)
    assert jobs.handle(DeadlinePassed(1), 3) == [GiveUpIn(ONE, 1)]
    assert jobs.handle(DeadlinePassed(2), 3) == [GiveUpIn(ONE, 2)]
    assert jobs.quarantined == 100
    assert jobs.handle(DeadlinePassed(3), 3) == [GiveUpIn(ONE, 3), Spawn(TWO)]
    assert jobs.handle(Tick(), 3) == []
    jobs.handle(MoverReady(TWO), 4)
    assert jobs.handle(Tick(), 4 + LIMITS.retire_grace_s) == [Kill(ONE)]
    assert len(outcomes(jobs.handle(MoverReaped(ONE), 9))) == 3
    assert (jobs.quarantined, jobs.movers, jobs.next_tick()) == (0, 1, None)


def test_a_failure_without_proof_waits_for_the_movers_end(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    assert jobs.handle(ended(7, Outcome.PEER_LOST, quiet=False), 2) == [Spawn(TWO)]
    assert jobs.holds(7)
    assert outcomes(jobs.handle(ReadAsked(8, "b"), 2)) == [(8, Outcome.BUSY_PEER)]
    jobs.handle(MoverReady(TWO), 3)
    assert jobs.handle(Tick(), 3 + LIMITS.retire_grace_s) == [Kill(ONE)]
    assert jobs.holds(7)
    assert outcomes(jobs.handle(MoverReaped(ONE), 8)) == [(7, Outcome.PEER_LOST)]


def test_the_old_mover_works_until_its_successor_is_ready(jobs: MoverJobs) -> None:
    assert jobs.handle(Recycle(), 1) == [Spawn(TWO)]
    assert jobs.handle(ReadAsked(7, "b"), 1) == [Post(ONE, 7)]
    assert jobs.handle(MoverReady(TWO), 2) == [Announce(TWO)]
    assert jobs.handle(ReadAsked(8, "b"), 2) == [Post(TWO, 8)]
    # A healthy READ keeps the retired mover beyond its grace, a successful end does not free it before.
    assert jobs.handle(Tick(), 2 + LIMITS.retire_grace_s) == []
    assert jobs.handle(ended(7), 7) == [Tell(7, Outcome.DONE, ""), Kill(ONE)]
    assert jobs.movers == 2
    jobs.handle(MoverReaped(ONE), 8)
    assert jobs.movers == 1


def test_given_up_reads_do_not_keep_a_retired_mover(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    jobs.handle(DeadlinePassed(7), 3)
    jobs.handle(Recycle(), 3)
    jobs.handle(MoverReady(TWO), 4)
    assert jobs.next_tick() == 4 + LIMITS.retire_grace_s
    assert jobs.handle(Tick(), 4 + LIMITS.retire_grace_s) == [Kill(ONE)]
    # The peer stays barred although a fresh mover is there: its READ may still land.
    assert outcomes(jobs.handle(ReadAsked(8, "b"), 9)) == [(8, Outcome.BUSY_PEER)]
    assert outcomes(jobs.handle(MoverReaped(ONE), 9)) == [(7, Outcome.REAPED)]


def test_a_read_that_never_ends_costs_its_mover(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    jobs.handle(DeadlinePassed(7), 3)
    assert jobs.next_tick() == 3 + LIMITS.recycle_after_s
    assert jobs.handle(Tick(), 32.9) == []
    assert jobs.handle(Tick(), 33) == [Spawn(TWO)]
    jobs.handle(MoverReady(TWO), 34)
    assert jobs.handle(Tick(), 34 + LIMITS.retire_grace_s) == [Kill(ONE)]
    # The successor has none of it, so it stays.
    jobs.handle(MoverReaped(ONE), 39)
    assert jobs.next_tick() is None


def test_a_retired_mover_has_a_limit(jobs: MoverJobs) -> None:
    jobs.handle(ReadAsked(7, "b"), 1)
    jobs.handle(Recycle(), 3)
    jobs.handle(MoverReady(TWO), 4)
    assert jobs.handle(Tick(), 4 + LIMITS.retire_limit_s) == [Kill(ONE)]


def test_only_one_mover_is_retired_at_a_time(jobs: MoverJobs) -> None:
    jobs.handle(Recycle(), 1)
    jobs.handle(MoverReady(TWO), 2)
    assert jobs.handle(Recycle(), 3) == []
    jobs.handle(Tick(), 2 + LIMITS.retire_grace_s)
    assert jobs.handle(MoverReaped(ONE), 7) == [Spawn(THREE)]


def test_a_dead_mover_is_replaced_with_growing_pauses(jobs: MoverJobs) -> None:
    now, mover, pauses = 1.0, 1, []
    for _ in range(5):
        jobs.handle(MoverReaped(MoverNumber(mover)), now)
        assert not jobs.ready
        due = jobs.next_tick()
        assert due is not None
        pauses.append(due - now)
        assert jobs.handle(Tick(), now) == []
        mover += 1
        now = due
        assert jobs.handle(Tick(), now) == [Spawn(MoverNumber(mover))]
    assert pauses == [1, 2, 4, 5, 5]
    jobs.handle(MoverReady(MoverNumber(mover)), now)
    jobs.handle(MoverReaped(MoverNumber(mover)), now + LIMITS.healthy_after_s)
    assert jobs.next_tick() == now + LIMITS.healthy_after_s + LIMITS.respawn_first_s


def test_a_successor_takes_over_when_the_current_mover_dies(jobs: MoverJobs) -> None:
    jobs.handle(Recycle(), 1)
    jobs.handle(MoverReaped(ONE), 2)
    assert not jobs.ready
    assert outcomes(jobs.handle(ReadAsked(7, "b"), 2)) == [(7, Outcome.MOVER_DIED)]
    assert jobs.handle(MoverReady(TWO), 3) == [Announce(TWO)]
    assert jobs.ready


def test_a_dead_successor_is_tried_again(jobs: MoverJobs) -> None:
    jobs.handle(Recycle(), 1)
    jobs.handle(MoverReaped(TWO), 2)
    assert jobs.ready
    assert jobs.handle(Tick(), 3) == [Spawn(THREE)]


def test_after_stop_nothing_starts_again(jobs: MoverJobs) -> None:
    jobs.handle(Recycle(), 1)
    assert jobs.handle(Stop(), 2) == [Kill(ONE), Kill(TWO)]
    assert jobs.handle(MoverReady(TWO), 2) == []
    jobs.handle(MoverReaped(ONE), 3)
    jobs.handle(MoverReaped(TWO), 3)
    assert (jobs.movers, jobs.next_tick()) == (0, None)
    assert jobs.handle(Tick(), 100) == []
    assert outcomes(jobs.handle(ReadAsked(7, "b"), 100)) == [(7, Outcome.MOVER_DIED)]


class Machine(RuleBasedStateMachine):
    """Any order of events, stale and doubled ones included, against a plain record of what may still land."""

    asked: Bundle[int] = Bundle("asked")

    def __init__(self) -> None:
        super().__init__()
        self.state = MoverJobs(LIMITS, quarantine_bytes=250)
        self.now = 0.0
        self.next_job = 1
        self.alive: set[int] = set()
        self.ready: set[int] = set()
        self.may_land: dict[int, int] = {}
        self.told: set[int] = set()
        self.stopped = False
        self.apply(Start())

    def apply(self, event: Any, ending: int | None = None) -> None:
        """`ending`: the job or (negative) the mover whose end this event reports, so that telling it is right."""
        for command in self.state.handle(event, self.now):
            match command:
                case Spawn(mover):
                    assert not self.stopped
                    assert mover not in self.alive
                    self.alive.add(mover)
                case Kill(mover) | Announce(mover):
                    assert mover in self.alive
                case Post(mover, job):
                    assert mover in self.ready
                    self.may_land[job] = mover
                case GiveUpIn(mover, job):
                    assert self.may_land[job] == mover
                case Tell(job, outcome, _):
                    assert job not in self.told, "told twice"
                    assert job not in self.may_land, "told while something may land"
                    assert outcome is not Outcome.LANDED_LATE or ending == job
                    self.told.add(job)
        assert len(self.alive) <= 2
        self.state.validate()

    @rule(target=asked, peer=st.sampled_from("abc"), size=st.sampled_from([1, 100, 1000]))
    def ask(self, peer: str, size: int) -> int:
        job, self.next_job = self.next_job, self.next_job + 1
        self.apply(ReadAsked(job, peer, size))
        assert (job in self.told) != (job in self.may_land)
        return job

    @rule(job=asked, outcome=st.sampled_from([Outcome.DONE, Outcome.PEER_LOST, Outcome.BAD_DESCRIPTOR]))
    def end(self, job: int, outcome: Outcome) -> None:
        mover = self.may_land.pop(job, None)
        self.apply(ReadEnded(MoverNumber(mover or 1), job, outcome, "", True), ending=job)
        assert job in self.told

    @rule(job=asked)
    def fail_without_proof(self, job: int) -> None:
        if job in self.may_land:
            self.apply(ReadEnded(MoverNumber(self.may_land[job]), job, Outcome.PEER_LOST, "", False))
            assert job not in self.told

    @rule(job=asked)
    def deadline(self, job: int) -> None:
        self.apply(DeadlinePassed(job))

    @rule(data=st.data())
    def become_ready(self, data: st.DataObject) -> None:
        starting = sorted(self.alive - self.ready)
        if starting:
            mover = data.draw(st.sampled_from(starting))
            self.ready.add(mover)
            self.apply(MoverReady(MoverNumber(mover)))

    @rule(data=st.data())
    def reap(self, data: st.DataObject) -> None:
        if self.alive:
            mover = data.draw(st.sampled_from(sorted(self.alive)))
            self.alive.discard(mover)
            self.may_land = {job: where for job, where in self.may_land.items() if where != mover}
            self.apply(MoverReaped(MoverNumber(mover)))

    @rule(mover=st.integers(1, 9))
    def stale_reap(self, mover: int) -> None:
        if mover not in self.alive:
            self.apply(MoverReaped(MoverNumber(mover)))

    @rule()
    def recycle(self) -> None:
        self.apply(Recycle())

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 9.0, 31.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds
        self.apply(Tick())
        due = self.state.next_tick()
        assert due is None or due > self.now, "something due was left undone"

    @rule()
    def stop(self) -> None:
        self.stopped = True
        self.apply(Stop())

    @invariant()
    def held_means_not_told(self) -> None:
        assert set(self.may_land) == {job for job in range(1, self.next_job) if self.state.holds(job)}
        assert self.told == set(range(1, self.next_job)) - set(self.may_land)
        assert self.state.movers == len(self.alive)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
