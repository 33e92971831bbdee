"""Which READs are open in which mover, and when their destination is quiet again. Pure: no sockets, no clock, no processes.

    asked ──posted──▶ open ──ended──▶ told its outcome                    the destination is quiet
                       │ deadline
                       ▼
                    given up ──ended──▶ told landed_late / failed_late    the destination is quiet
                       │ mover reaped
                       ▼
                    told reaped                                           the destination is quiet

A job is told exactly once, and only when nothing can land in its destination any more: because the READ ended, or because
the mover that posted it was **reaped** (waitpid, not merely signalled). Giving a READ up in NIXL stops nothing: when a
stopped owner resumes, all bytes still land. So there is no other way out.

Movers: one takes new READs (*current*), at most one finishes its own (*retired*). A recycle (asked for, because a given-up
READ does not end by itself, or because more bytes are in quarantine than the pool can spare) starts a *successor*; the
current mover works until that is ready and is retired then. A retired mover is killed when it has no healthy job left and
its grace is over (other tiers may be reading through it), or when its limit is over.

A peer with a given-up READ gets no new ones, and no peer has more than a share of the open READs: one that does not answer
costs itself, and the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, assert_never

from pegaflow.services.tier.mover.events import (
    DEFAULT_LIMITS,
    Announce,
    Command,
    DeadlinePassed,
    Event,
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
from pegaflow.services.tier.mover.ledger import Job, Ledger

# Healthy movers of one node never come near; a runaway caller is answered instead of filling memory.
MAX_OPEN_JOBS: Final = 4096
# Of one peer. Each costs descriptors here and, at a peer that stands still, a request and a notification that UCX keeps.
MAX_PEER_JOBS: Final = 512


@dataclass(slots=True)
class _Mover:
    number: MoverNumber
    ready_at: float | None = None
    retired_at: float | None = None
    killed: bool = False
    jobs: set[int] = field(default_factory=set)


class MoverJobs:
    """The jobs of one pool of movers. `handle` is the only way to change it."""

    __slots__ = (
        "_current",
        "_failures",
        "_jobs",
        "_limits",
        "_next",
        "_quarantine_bytes",
        "_respawn_at",
        "_retired",
        "_running",
        "_successor",
        "_want_recycle",
    )

    def __init__(self, limits: Limits = DEFAULT_LIMITS, quarantine_bytes: int | None = None) -> None:
        """`quarantine_bytes`: what the destinations of given-up READs may hold before the mover is recycled; None: any."""
        self._limits = limits
        self._quarantine_bytes = quarantine_bytes
        self._jobs = Ledger()
        self._current: _Mover | None = None
        self._successor: _Mover | None = None  # starting, to replace a current one that works
        self._retired: _Mover | None = None
        self._next = 1
        self._running = False
        self._want_recycle = False
        self._failures = 0
        self._respawn_at: float | None = None

    # -- reading

    @property
    def ready(self) -> bool:
        """A mover takes READs."""
        return self._current is not None and self._current.ready_at is not None and not self._current.killed

    @property
    def open(self) -> int:
        """READs that somebody waits for."""
        return self._jobs.healthy

    @property
    def given_up(self) -> int:
        """READs that nobody waits for and that may still land."""
        return len(self._jobs) - self.open

    @property
    def quarantined(self) -> int:
        """Bytes of their destinations."""
        return self._jobs.quarantined(number for number, _ in self._jobs.items())

    @property
    def movers(self) -> int:
        """Processes not reaped yet."""
        return len(self._movers())

    def holds(self, job: int) -> bool:
        """Something may still land in this job's destination."""
        return job in self._jobs

    def next_tick(self) -> float | None:
        """When `Tick` will do something, or None."""
        times = [] if self._respawn_at is None else [self._respawn_at]
        retired = self._retired
        if retired is not None and retired.retired_at is not None and not retired.killed:
            healthy = self._healthy(retired)
            span = self._limits.retire_limit_s if healthy else self._limits.retire_grace_s
            times.append(retired.retired_at + span)
        overdue = self._overdue_at()
        if overdue is not None and not self._want_recycle:
            times.append(overdue)
        return min(times, default=None)

    # -- changing

    def handle(self, event: Event, now: float) -> list[Command]:
        """Applies one event. `now` is seconds on a clock that never goes back. Raises ValueError for a job number in use."""
        match event:
            case Start():
                self._running = True
                return self._advance(now)
            case MoverReady(number):
                return self._mover_ready(number, now)
            case MoverReaped(number):
                return self._mover_reaped(number, now)
            case ReadAsked():
                return self._asked(event)
            case ReadEnded():
                return self._ended(event, now)
            case DeadlinePassed(job):
                return self._deadline(job, now)
            case Recycle():
                # Without a working mover there is nothing to retire: the next one is new anyway.
                self._want_recycle = self.ready
                return self._advance(now)
            case Tick():
                return self._advance(now)
            case Stop():
                self._running = self._want_recycle = False
                self._respawn_at = None
                return [kill for mover in self._movers() for kill in self._kill(mover)]
            case _:
                assert_never(event)

    def _advance(self, now: float) -> list[Command]:
        """What is due: a new mover, a successor, the end of a retired one."""
        commands: list[Command] = []
        if self._respawn_at is not None and now >= self._respawn_at:
            self._respawn_at = None
        overdue = self._overdue_at()
        self._want_recycle |= (overdue is not None and now >= overdue) or self._crowded()
        if self._running and self._respawn_at is None:
            if self._current is None:
                self._current = self._new_mover(commands)
            elif self._want_recycle and self.ready and self._successor is None and self._retired is None:
                self._successor = self._new_mover(commands)
        retired = self._retired
        if retired is not None and retired.retired_at is not None:
            age = now - retired.retired_at
            done = age >= self._limits.retire_grace_s and not self._healthy(retired)
            if done or age >= self._limits.retire_limit_s:
                commands += self._kill(retired)
        return commands

    def _new_mover(self, commands: list[Command]) -> _Mover:
        mover = _Mover(MoverNumber(self._next))
        self._next += 1
        commands.append(Spawn(mover.number))
        return mover

    @staticmethod
    def _kill(mover: _Mover) -> list[Command]:
        if mover.killed:
            return []
        mover.killed = True
        return [Kill(mover.number)]

    def _mover_ready(self, number: MoverNumber, now: float) -> list[Command]:
        mover = self._find(number)
        if mover is None or mover.killed or mover.ready_at is not None:
            return []
        mover.ready_at = now
        if mover is self._successor:
            assert self._current is not None and self._retired is None
            self._current.retired_at = now
            self._retired, self._current, self._successor = self._current, mover, None
            self._want_recycle = False
        return [Announce(number), *self._advance(now)]

    def _mover_reaped(self, number: MoverNumber, now: float) -> list[Command]:
        gone = self._find(number)
        if gone is None:
            return []
        if gone is self._retired:
            self._retired = None
        else:
            if gone is self._successor:
                self._successor = None
            else:
                # What a recycle was for has happened.
                self._current, self._successor, self._want_recycle = self._successor, None, False
            if self._running:
                self._back_off(gone, now)
        commands: list[Command] = []
        for job in sorted(gone.jobs):
            entry = self._jobs.pop(job)
            if entry.given_up:
                commands.append(Tell(job, Outcome.REAPED, "the mover that had posted it is gone"))
            elif entry.failed is not None:
                commands.append(Tell(job, Outcome.PEER_LOST, entry.failed))
            else:
                commands.append(Tell(job, Outcome.MOVER_DIED, "the mover died with the READ open"))
        return [*commands, *self._advance(now)]

    def _back_off(self, gone: _Mover, now: float) -> None:
        lived = gone.ready_at is not None and now - gone.ready_at >= self._limits.healthy_after_s
        self._failures = 0 if lived else self._failures + 1
        pause = self._limits.respawn_first_s * 2 ** min(max(self._failures - 1, 0), 16)
        self._respawn_at = now + min(pause, self._limits.respawn_max_s)

    def _asked(self, event: ReadAsked) -> list[Command]:
        job, peer = event.job, event.peer
        if job in self._jobs:
            raise ValueError(f"job {job} is open already")
        mover = self._current
        if mover is None or not self.ready:
            return [Tell(job, Outcome.MOVER_DIED, "no mover is ready")]
        if self._jobs.busy(peer):
            return [Tell(job, Outcome.BUSY_PEER, f"{peer} has a READ that was given up and has not ended")]
        if self._jobs.of_peer(peer) >= MAX_PEER_JOBS:
            return [Tell(job, Outcome.BUSY_PEER, f"{self._jobs.of_peer(peer)} READs of {peer} are open")]
        if len(self._jobs) >= MAX_OPEN_JOBS:
            return [Tell(job, Outcome.BUSY_PEER, f"{len(self._jobs)} READs are open")]
        self._jobs.add(job, Job(peer, mover.number, event.size))
        mover.jobs.add(job)
        return [Post(mover.number, job)]

    def _ended(self, event: ReadEnded, now: float) -> list[Command]:
        entry = self._jobs.get(event.job)
        mover = self._find(event.mover)
        # A job ends in the mover that has it; anything else is a stale word.
        if entry is None or mover is None or entry.mover != event.mover:
            return []
        if not event.quiet:
            entry.failed = event.text
            self._want_recycle |= mover is self._current
            return self._advance(now)
        self._jobs.pop(event.job)
        mover.jobs.discard(event.job)
        told = event.outcome
        if entry.given_up:
            told = Outcome.LANDED_LATE if event.outcome is Outcome.DONE else Outcome.FAILED_LATE
        return [Tell(event.job, told, event.text), *self._advance(now)]

    def _deadline(self, job: int, now: float) -> list[Command]:
        entry = self._jobs.get(job)
        if entry is None or entry.given_up:
            return []
        entry.given_up_at = now
        return [GiveUpIn(entry.mover, job), *self._advance(now)]

    def _overdue_at(self) -> float | None:
        """When the current mover has to be recycled, because only its end frees what was given up in it."""
        if not (self._running and self.ready) or self._current is None:
            return None
        since = [self._jobs[job].given_up_at for job in self._current.jobs]
        return min((at + self._limits.recycle_after_s for at in since if at is not None), default=None)

    def _crowded(self) -> bool:
        """More is in quarantine than may be, and the end of the current mover would free it."""
        if self._quarantine_bytes is None or not (self._running and self.ready) or self._current is None:
            return False
        return self._jobs.quarantined(self._current.jobs) > self._quarantine_bytes

    def _healthy(self, mover: _Mover) -> bool:
        """Somebody waits for a READ of this mover."""
        return any(self._jobs[job].healthy for job in mover.jobs)

    def _movers(self) -> list[_Mover]:
        return [mover for mover in (self._current, self._successor, self._retired) if mover is not None]

    def _find(self, number: MoverNumber) -> _Mover | None:
        return next((mover for mover in self._movers() if mover.number == number), None)

    def validate(self) -> None:
        """Raises AssertionError when the parts disagree."""
        self._jobs.validate()
        movers = self._movers()
        assert len({mover.number for mover in movers}) == len(movers), "one mover in two places"
        assert all(mover.number < self._next for mover in movers)
        filed = sorted((job, mover.number) for mover in movers for job in mover.jobs)
        assert filed == sorted((job, entry.mover) for job, entry in self._jobs.items()), "a job without its mover"
        assert all(mover.ready_at is not None for mover in movers if mover.jobs), "a job in a mover that never was ready"
        assert self._retired is None or self._retired.retired_at is not None
        assert self._current is None or self._current.retired_at is None
        assert self._successor is None or (self._successor.ready_at is None and self._retired is None)
        assert not self._running or self._current is not None or self._respawn_at is not None, "no mover, none due"
        assert 0 <= self.open <= len(self._jobs)
