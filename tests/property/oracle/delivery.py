"""A batch's output comes: vLLM's `update_from_output`, in its order, and `KVOutputAggregator` before it.

fences ─▶ failed receives, bad blocks ─▶ tokens ─▶ requests that failed ─▶ the connector's reports ─▶ received
"""

from __future__ import annotations

from pegaflow.connector.work import RankReport
from pegaflow.connector.worker import Collected

from oracle.batch import Batch, Item
from oracle.prefixes import BLOCK
from oracle.request import Request, Status
from oracle.scheduler import Scheduler

TURN = 3
"""Tokens that the next turn of a session brings."""


class Delivery:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._refused: set[str] = set()

    def deliver(self, batch: Batch) -> None:
        scheduler = self._scheduler
        scheduler.batches.remove(batch)
        assert batch.collected is not None
        scheduler.processed += bool(batch.items)
        self._drain_fences()
        report, received = self._gather(batch.collected)
        dead = self._fail(received)
        for item in batch.items:
            self._output(item, dead)
        for request_id in dead:
            if (request := scheduler.requests.get(request_id)) is not None and request.status is not Status.FINISHED:
                scheduler.finish(request)
        scheduler.half.reported(report, received)
        for request_id in received:
            claim = scheduler.claims.pop(request_id)
            request = scheduler.requests[request_id]
            if request.status is Status.FINISHED:
                scheduler.forget(request)
                continue
            scheduler.received.add(request_id)
            request.claims_failed += claim.failed
            scheduler.seen["loads_failed" if claim.failed else "loads_done"] += 1

    def _drain_fences(self) -> None:
        scheduler = self._scheduler
        while scheduler.fenced and scheduler.fenced[0][0] <= scheduler.processed:
            _, table = scheduler.fenced.pop(0)
            scheduler.pool.free_blocks([scheduler.pool.blocks[block] for block in reversed(table)])

    def _gather(self, collected: list[Collected]) -> tuple[RankReport, set[str]]:
        scheduler = self._scheduler
        report = RankReport()
        received: set[str] = set()
        self._bad: list[int] = []
        for rank, own in enumerate(collected):
            report.add(own.report)
            self._bad += own.bad_blocks
            self._refused |= own.refused
            for request_id in own.received:
                claim = scheduler.claims.get(request_id)
                right = claim is not None and rank in claim.ranks
                scheduler.verdict.demand(right, f"rank {rank} reports the load of {request_id} once too often")
                if claim is not None:
                    claim.ranks.discard(rank)
                    if not claim.ranks:
                        received.add(request_id)
        return report, received

    def _fail(self, received: set[str]) -> set[str]:
        """Failed receives start again from nothing, others from before their first bad block. Returns who is to die."""
        scheduler = self._scheduler
        failed: set[str] = set()
        for request_id in received & self._refused:
            failed |= self._truncate(request_id, 0)
        self._refused -= received
        for block in self._bad:
            owners = [request_id for request_id, claim in scheduler.claims.items() if block in claim.blocks]
            scheduler.verdict.demand(len(owners) == 1, f"block {block} is reported bad and is in {len(owners)} loads")
            shared = [request for request in scheduler.running if block in request.table]
            scheduler.verdict.demand(not shared, f"block {block} is reported bad and is in a running request")
            for request_id in owners:
                claim = scheduler.claims[request_id]
                failed |= self._truncate(request_id, (claim.first + claim.blocks.index(block)) * BLOCK)
        return failed if scheduler.shape.options.strict else set()

    def _truncate(self, request_id: str, computed: int) -> set[str]:
        scheduler = self._scheduler
        scheduler.claims[request_id].failed = True
        request = scheduler.requests[request_id]
        if request.status is not Status.LOADING:
            return set()
        request.num_computed_tokens = min(request.num_computed_tokens, computed)
        scheduler.failed.add(request_id)
        return {request_id}

    def _output(self, item: Item, dead: set[str]) -> None:
        scheduler = self._scheduler
        request = item.request
        request.in_flight -= item.count
        stale = request.stale > 0
        if stale:
            request.stale -= item.count
        scheduler.verdict.demand(stale == (item.life != request.life), "the model takes an output for another life's")
        if request.request_id in dead or request.status is Status.FINISHED or (stale and request.drop_stale) or not item.samples:
            return
        rejected, tokens = item.drafts - item.accepted, item.accepted + 1
        scheduler.seen["rejected"] += rejected
        scheduler.seen["late"] += stale
        if not stale:
            request.num_computed_tokens -= rejected
            if request.placeholders > 0:
                request.placeholders -= rejected
        tokens = min(tokens, request.limit - request.num_tokens)
        request.grow(tokens)
        running = request.status is Status.RUNNING
        if scheduler.shape.asynchronous and running:
            request.placeholders -= tokens
            scheduler.cache(request, request.num_computed_tokens - request.placeholders)
        if request.num_tokens >= request.limit:
            if request.turns_left and running and self._room_for_turn():
                self._turn(request)
            else:
                scheduler.finish(request)

    def _room_for_turn(self) -> bool:
        """A waiting session holds blocks that nobody can take from it: two of them can stop vLLM for good, without our help."""
        scheduler = self._scheduler
        return len(scheduler.pool.free) >= 4 and not any(request.table for request in scheduler.waiting)

    def _turn(self, request: Request) -> None:
        """`_handle_stopped_request`: a session goes on with its next turn, from what has really been computed."""
        scheduler = self._scheduler
        request.num_computed_tokens -= request.placeholders
        request.placeholders = 0
        request.decoding = False
        request.drop_stale = True
        request.stale = request.in_flight
        request.life += 1
        request.left = request.table
        request.turn(TURN, TURN)
        scheduler.seen["turns"] += 1
        scheduler.running.remove(request)
        request.status = Status.WAITING
        scheduler.waiting.append(request)
