"""Faults in looking up and loading that connectors of this kind have had, put back into the real classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from pegaflow.common.pool import GRANULE
from pegaflow.connector.load_plan import LoadPlan
from pegaflow.connector.load_tracker import Command, Load, LoadTracker, Match, Phase, Release, Version
from pegaflow.connector.session import SessionId
from pegaflow.connector.work import StepWork
from pegaflow.connector.worker import Collected, RankHalf

ASKED = LoadTracker.asked
MATCHED = LoadTracker.matched
RECEIVED = LoadTracker.received
RANK_RECEIVED = RankHalf._received
COLLECT = RankHalf.collect
START_LOADS = RankHalf.start_loads
FETCH = RankHalf._fetch


def stale_session_trusted() -> AbstractContextManager[Any]:
    """An answer of a tier that has restarted since is used."""

    def matched(
        self: LoadTracker, request_id: str, version: Version, computed: int, session: SessionId | None, now: float
    ) -> Match:
        request = self._requests.get(request_id)
        if request is not None and request.lease is not None:
            session = request.lease.session
        return MATCHED(self, request_id, version, computed, session, now)

    return mock.patch.object(LoadTracker, "matched", matched)


def stale_local_hits_trusted() -> AbstractContextManager[Any]:
    """An answer is taken to begin where vLLM's own cache ends now, not where it ended when the lookup was made."""

    def matched(
        self: LoadTracker, request_id: str, version: Version, computed: int, session: SessionId | None, now: float
    ) -> Match:
        request = self._requests.get(request_id)
        if request is not None and request.phase is Phase.ANSWERED:
            request.plan = request.plan._replace(first=computed // self.block_size)
        return MATCHED(self, request_id, version, computed, session, now)

    return mock.patch.object(LoadTracker, "matched", matched)


def second_claim_after_failure() -> AbstractContextManager[Any]:
    """A failed load is forgotten, so the next question finds the same pages again."""

    def received(self: LoadTracker, request_id: str, failed: bool) -> list[Command]:
        commands = RECEIVED(self, request_id, failed)
        request = self._requests.get(request_id)
        if request is not None and request.phase is Phase.BARRED:
            request.phase = Phase.LOADED
        return commands

    return mock.patch.object(LoadTracker, "received", received)


def lease_forgotten_on_abort() -> AbstractContextManager[Any]:
    """A load whose request has ended meanwhile ends without a word."""

    def received(self: LoadTracker, request_id: str, failed: bool) -> list[Command]:
        request = self._requests.get(request_id)
        over = request is not None and request.over
        commands = RECEIVED(self, request_id, failed)
        return [] if over else commands

    return mock.patch.object(LoadTracker, "received", received)


def failed_load_not_reported_as_failed() -> AbstractContextManager[Any]:
    """A rank reports the end of a load, and not how it ended."""

    def received(self: RankHalf, load: Load, code: str, bad: Sequence[int]) -> None:
        RANK_RECEIVED(self, load, load.refuse, ())

    return mock.patch.object(RankHalf, "_received", received)


def failed_blocks_not_reported() -> AbstractContextManager[Any]:
    """The scheduler half hears that the load failed; vLLM does not hear which blocks are bad."""

    def received(self: RankHalf, load: Load, code: str, bad: Sequence[int]) -> None:
        RANK_RECEIVED(self, load, code, ())

    return mock.patch.object(RankHalf, "_received", received)


def generation_checked_before_only() -> AbstractContextManager[Any]:
    """A page that is replaced while it is being read counts as read."""

    def fetch(self: RankHalf, job: Any) -> tuple[int, str]:
        load = job.load
        slots, generations = load.slots[self._member.shard :: self._member.shards], load.generations
        generations = generations[self._member.shard :: self._member.shards]
        for first in range(0, len(load.blocks), self._chunk):
            chunk = slice(first, first + self._chunk)
            view = self._bus.begin_copy(load.lease.session)
            if view is None:
                return first, "session_over"
            try:
                if any(view.generation(s) != g for s, g in zip(slots[chunk], generations[chunk], strict=True)):
                    return first, "generation_changed"
                self._copier.fetch(view.memory, load.blocks[chunk], [slot * GRANULE for slot in slots[chunk]], job.mark)
            finally:
                self._bus.end_copy()
        return len(load.blocks), ""

    return mock.patch.object(RankHalf, "_fetch", fetch)


@contextmanager
def load_reported_twice() -> Iterator[None]:
    """What one step reported, the next one reports again."""
    last: dict[int, set[str]] = {}

    def collect(self: RankHalf) -> Collected:
        collected = COLLECT(self)
        again = last.get(id(self), set())
        last[id(self)] = set(collected.received)
        collected.received |= again
        return collected

    with mock.patch.object(RankHalf, "collect", collect):
        yield


def load_started_by_both_hooks() -> AbstractContextManager[Any]:
    """Each hook of a step starts its loads."""

    def start_loads(self: RankHalf, work: StepWork) -> None:
        self._last_loads = -1
        START_LOADS(self, work)

    return mock.patch.object(RankHalf, "start_loads", start_loads)


def load_that_raised_never_reported() -> AbstractContextManager[Any]:
    """What a copy raises ends in the lane's log."""

    def load(self: RankHalf, job: Any) -> None:
        done, code = self._fetch(job)
        self._received(job.load, code, job.load.blocks[done:])

    return mock.patch.object(RankHalf, "_load", load)


@contextmanager
def refused_load_never_reported() -> Iterator[None]:
    """There is nothing to copy, so nothing is reported."""

    def start_loads(self: RankHalf, work: StepWork) -> None:
        START_LOADS(self, replace(work, loads=tuple(load for load in work.loads if not load.refuse)))

    with mock.patch.object(RankHalf, "start_loads", start_loads):
        yield


def stale_probe_trusted() -> AbstractContextManager[Any]:
    """An answer for an earlier version of the request counts, whatever has become of it since."""

    def matched(
        self: LoadTracker, request_id: str, version: Version, computed: int, session: SessionId | None, now: float
    ) -> Match:
        request = self._requests.get(request_id)
        if request is not None:
            request.version = version
            if request.phase is Phase.LOADED:
                request.phase = Phase.SETTLED
        return MATCHED(self, request_id, version, computed, session, now)

    return mock.patch.object(LoadTracker, "matched", matched)


def lookup_not_sent() -> AbstractContextManager[Any]:
    """Nobody is asked, so there is nothing to load."""

    def asked(self: LoadTracker, request_id: str, prompt: int, version: Version, plan: LoadPlan, now: float) -> list[Command]:
        return ASKED(self, request_id, prompt, version, LoadPlan(0, 0, ()), now)

    return mock.patch.object(LoadTracker, "asked", asked)


def tail_not_asked_for() -> AbstractContextManager[Any]:
    """Full blocks alone."""

    def asked(self: LoadTracker, request_id: str, prompt: int, version: Version, plan: LoadPlan, now: float) -> list[Command]:
        return ASKED(self, request_id, prompt, version, plan._replace(tails=()), now)

    return mock.patch.object(LoadTracker, "asked", asked)


def lease_kept() -> AbstractContextManager[Any]:
    """A load has ended, and its lease goes on."""

    def received(self: LoadTracker, request_id: str, failed: bool) -> list[Command]:
        return [command for command in RECEIVED(self, request_id, failed) if not isinstance(command, Release)]

    return mock.patch.object(LoadTracker, "received", received)


def load_of_shard_nought() -> AbstractContextManager[Any]:
    """Every rank loads the pages of the first one."""

    def fetch(self: RankHalf, job: Any) -> tuple[int, str]:
        member = self._member
        self._member = member._replace(shard=0)
        try:
            return FETCH(self, job)
        finally:
            self._member = member

    return mock.patch.object(RankHalf, "_fetch", fetch)
