"""Faults that connectors of this kind have had, put back into the real classes, one at a time. The oracle has to find each.

Not here, because nothing wrong can come of them in this design:

- *Bound by `written` alone, hashes still counted.* A block's key is vLLM's hash, and vLLM hashes known tokens only, so the
  number of hashes is the bound by known tokens in another form. The mutant here drops both.
- *An answer for an earlier version of the request.* While a lookup is answered and not used, a request can only have
  grown, and pages of its shorter prefix are right for it. What goes stale is the session and the local hits.
- *A counter that is not reset on resume.* There is none. Its two forms are here as an accumulator and as a block table
  that is kept from before the preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from pegaflow.common.pool import GRANULE
from pegaflow.connector import saving
from pegaflow.connector.load_tracker import Command, Load, LoadTracker, Match, Phase, Version
from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker, Unpin
from pegaflow.connector.session import SessionId
from pegaflow.connector.work import StepWork
from pegaflow.connector.worker import Collected, RankHalf

Mutant = Callable[[], AbstractContextManager[Any]]

WANTS = SaveTracker.wants
PROGRESSED = SaveTracker.progressed
ADMITTED = SaveTracker.admitted
MATCHED = LoadTracker.matched
RECEIVED = LoadTracker.received
FINISHED = LoadTracker.finished
RANK_RECEIVED = RankHalf._received
COLLECT = RankHalf.collect
START_LOADS = RankHalf.start_loads


@contextmanager
def accumulator() -> Iterator[None]:
    """Adds up what was scheduled, from where the request started, and goes on adding after a preemption."""
    totals: dict[str, int] = {}

    def admitted(self: SaveTracker, request_id: str, prompt: int, plain: bool) -> None:
        totals.pop(request_id, None)
        ADMITTED(self, request_id, prompt, plain)

    def wants(self: SaveTracker, progress: Progress) -> bool:
        totals[progress.request_id] = totals.get(progress.request_id, progress.computed) + progress.scheduled
        return WANTS(self, added_up(progress))

    def progressed(self: SaveTracker, progress: Progress, table: Sequence[int]) -> Offer | None:
        return PROGRESSED(self, added_up(progress), table)

    def added_up(progress: Progress) -> Progress:
        return replace(progress, computed=totals[progress.request_id] - progress.scheduled)

    with mock.patch.multiple(SaveTracker, admitted=admitted, wants=wants, progressed=progressed):
        yield


@contextmanager
def table_kept_on_resume() -> Iterator[None]:
    """Appends to the block table that it knows; a resumed request has other blocks."""
    tables: dict[str, list[int]] = {}

    def admitted(self: SaveTracker, request_id: str, prompt: int, plain: bool) -> None:
        tables.pop(request_id, None)
        ADMITTED(self, request_id, prompt, plain)

    def progressed(self: SaveTracker, progress: Progress, table: Sequence[int]) -> Offer | None:
        known = tables.setdefault(progress.request_id, [])
        known += table[len(known) :]
        return PROGRESSED(self, progress, known[: len(table)])

    with mock.patch.multiple(SaveTracker, admitted=admitted, progressed=progressed):
        yield


def bound_by_written_alone() -> AbstractContextManager[Any]:
    """Drafts count as if they were accepted: neither the known tokens nor their hashes are a bound."""

    def full(self: SaveTracker, progress: Progress) -> int:
        return progress.written // self.block_size

    return mock.patch.object(SaveTracker, "_full", full)


def flag_instead_of_count() -> AbstractContextManager[Any]:
    """The first rank's report ends a save."""

    def ended(self: SaveTracker, save: int, ranks: int = 1) -> Unpin | None:
        pin = self._pins.pop(save, None)
        return None if pin is None else Unpin(pin.blocks)

    return mock.patch.object(SaveTracker, "ended", ended)


def tail_with_salt() -> AbstractContextManager[Any]:
    """Saves tails of requests whose KV their ids do not decide."""
    return mock.patch.object(saving, "plain", lambda request: True)


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
    """A request that ends while it is loading is dropped at once."""

    def finished(self: LoadTracker, request_id: str) -> list[Command]:
        commands = FINISHED(self, request_id)
        self._requests.pop(request_id, None)
        return commands

    return mock.patch.object(LoadTracker, "finished", finished)


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


MUTANTS: dict[Mutant, str] = {
    accumulator: "sealed with rows",
    table_kept_on_resume: "sealed with rows|is free",
    bound_by_written_alone: "offer_failed",
    flag_instead_of_count: "is free|reused while a save reads it|copies are under way",
    tail_with_salt: "sealed with rows",
    stale_session_trusted: "out of another session",
    stale_local_hits_trusted: "a page that is not of it|differ in number",
    second_claim_after_failure: "claims again",
    lease_forgotten_on_abort: "leases are held",
    failed_load_not_reported_as_failed: "wrong rows",
    failed_blocks_not_reported: "wrong rows",
    generation_checked_before_only: "wrong rows",
    load_reported_twice: "once too often",
    load_started_by_both_hooks: "not its own|once too often",
    load_that_raised_never_reported: "never end",
    refused_load_never_reported: "never end",
}
"""Mutant → what the oracle has to say about it, as a regular expression."""
