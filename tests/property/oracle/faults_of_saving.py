"""Faults in saving that connectors of this kind have had, put back into the real classes, one at a time.

A counter that is not reset on resume has three forms here, since the connector keeps none: an accumulator, one that is
reset where the V1 runner would say so, and a block table that is kept from before the preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from pegaflow.connector.engine import Engine
from pegaflow.connector.load_tracker import Loaded, LoadTracker
from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker, Unpin
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.work import StepWork
from pegaflow.connector.worker import RankHalf

Mutant = Callable[[], AbstractContextManager[Any]]

WANTS = SaveTracker.wants
PROGRESSED = SaveTracker.progressed
PUBLISHED = SaveTracker.published
ADMITTED = SaveTracker.admitted
INIT = SchedulerHalf.__init__
BUILD = SchedulerHalf.build
SAVE = RankHalf._save
START_SAVES = RankHalf.start_saves


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

    def admitted(self: SaveTracker, request_id: str, prompt: int, plain: bool) -> None:
        ADMITTED(self, request_id, prompt, True)

    return mock.patch.object(SaveTracker, "admitted", admitted)


@contextmanager
def reset_where_the_v1_runner_says_so() -> Iterator[None]:
    """The accumulator starts again for requests in `resumed_req_ids`. The V2 runner has them among the new ones."""
    totals: dict[str, int] = {}

    def admitted(self: SaveTracker, request_id: str, prompt: int, plain: bool) -> None:
        totals.pop(request_id, None)
        ADMITTED(self, request_id, prompt, plain)

    def wants(self: SaveTracker, progress: Progress) -> bool:
        totals[progress.request_id] = totals.get(progress.request_id, progress.computed) + progress.scheduled
        return WANTS(self, replace(progress, computed=totals[progress.request_id] - progress.scheduled))

    def progressed(self: SaveTracker, progress: Progress, table: Sequence[int]) -> Offer | None:
        return PROGRESSED(self, replace(progress, computed=totals[progress.request_id] - progress.scheduled), table)

    def build(self: SchedulerHalf, output: Any) -> StepWork:
        for request_id in output.scheduled_cached_reqs.resumed_req_ids:
            totals.pop(request_id, None)
        return BUILD(self, output)

    with (
        mock.patch.multiple(SaveTracker, admitted=admitted, wants=wants, progressed=progressed),
        mock.patch.object(SchedulerHalf, "build", build),
    ):
        yield


def blocks_filled_by_decoding_not_saved() -> AbstractContextManager[Any]:
    """What lies behind the prompt is not worth it."""

    def full(self: SaveTracker, progress: Progress) -> int:
        prompt = self._requests[progress.request_id].prompt if progress.request_id in self._requests else 0
        return min(progress.hashes, progress.written, prompt) // self.block_size

    return mock.patch.object(SaveTracker, "_full", full)


@contextmanager
def local_hits_not_offered() -> Iterator[None]:
    """What vLLM found in its own cache is taken to have been saved by whoever computed it."""
    begun: set[tuple[int, str]] = set()

    def progressed(self: SaveTracker, progress: Progress, table: Sequence[int]) -> Offer | None:
        request = self._requests.get(progress.request_id)
        if request is not None and (id(request), progress.request_id) not in begun:
            begun.add((id(request), progress.request_id))
            request.offered = max(request.offered, progress.computed // self.block_size)
        return PROGRESSED(self, progress, table)

    with mock.patch.object(SaveTracker, "progressed", progressed):
        yield


def tail_not_saved() -> AbstractContextManager[Any]:
    """No request has a tail."""

    def admitted(self: SaveTracker, request_id: str, prompt: int, plain: bool) -> None:
        ADMITTED(self, request_id, prompt, False)

    return mock.patch.object(SaveTracker, "admitted", admitted)


def tail_that_was_loaded_counts_as_a_full_page() -> AbstractContextManager[Any]:
    """A block whose tail was loaded is not offered when decoding has filled it. The oracle has found this one here."""
    received = LoadTracker.received

    def with_tail(self: LoadTracker, request_id: str, failed: bool) -> list[Any]:
        request = self._requests.get(request_id)
        extra = 0
        if request is not None and request.answer is not None and request.answer.tail >= 0 and request.whole == request.plan.last:
            extra = 1
        commands = received(self, request_id, failed)
        return [replace(command, last=command.last + extra) if isinstance(command, Loaded) else command for command in commands]

    return mock.patch.object(LoadTracker, "received", with_tail)


def offered_once_whether_published_or_not() -> AbstractContextManager[Any]:
    """An offer counts as made before its intent went out."""

    def progressed(self: SaveTracker, progress: Progress, table: Sequence[int]) -> Offer | None:
        offer = PROGRESSED(self, progress, table)
        if offer is not None:
            request = self._requests[offer.request_id]
            request.offered, request.tail_due = offer.through, request.tail_due and not offer.tail_rows
        return offer

    return mock.patch.object(SaveTracker, "progressed", progressed)


def pinned_twice_for_a_block_in_two_pages() -> AbstractContextManager[Any]:
    """A block that is saved as a tail and as a full page at once is pinned for each, and given back once."""

    def published(self: SaveTracker, offers: Sequence[Offer]) -> list[Any]:
        saves = PUBLISHED(self, offers)
        return [replace(save, pins=save.blocks) for save in saves]

    return mock.patch.object(SaveTracker, "published", published)


@contextmanager
def hashes_taken_for_blocks() -> Iterator[None]:
    """Each hash is taken for one of a whole block."""

    def init(self: SchedulerHalf, options: Any, engine: Engine, *rest: Any, **named: Any) -> None:
        INIT(self, options, replace(engine, hash_block_size=engine.block_size), *rest, **named)

    with mock.patch.object(SchedulerHalf, "__init__", init):
        yield


def save_ended_before_it_was_copied() -> AbstractContextManager[Any]:
    """A rank says that a save has ended when it has been told of it."""

    def start(self: RankHalf, work: Any) -> None:
        START_SAVES(self, work)
        for order in work.saves:
            self._collected.report.ended[order.save] = 1

    def save(self: RankHalf, job: Any) -> None:
        ended = self._collected.report.ended
        SAVE(self, job)
        for order in job.work.saves:
            del ended[order.save]

    return mock.patch.multiple(RankHalf, start_saves=start, _save=save)
