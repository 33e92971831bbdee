"""vLLM's scheduler (0.32, `v1/core/sched/scheduler.py`) as far as a connector can tell, around the real scheduler half.

One or two batches in flight. With two of them counts are optimistic: a batch is scheduled as if all drafts of the one
before it had been right, and a token that is not known yet is a placeholder (`async_scheduler.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

from pegaflow.connector.load_tracker import Load
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.work import RankReport, StepWork
from pegaflow.connector.worker import Collected

from oracle.block_pool import BlockPool
from oracle.memory import Memory
from oracle.prefixes import BLOCK
from oracle.request import Request, Status
from oracle.tier import Tier
from oracle.verdict import Verdict

SPECULATION = 4
"""Most tokens of a decode step: drafts and the one after them."""


@dataclass(slots=True, eq=False)
class Item:
    """A request's part of a batch. `before`: its parts of batches whose rejections were not known yet."""

    request: Request
    life: int
    start: int
    count: int
    drafts: int
    accepted: int
    table: list[int]
    samples: bool
    before: list[Item]

    @property
    def real_start(self) -> int:
        return self.start - sum(item.drafts - item.accepted for item in self.before)


@dataclass(slots=True, eq=False)
class Batch:
    number: int
    items: list[Item]
    work: StepWork
    collected: list[Collected] | None = None


@dataclass(slots=True)
class Claim:
    """A load that ranks have not all reported: `ranks` are still to."""

    first: int
    blocks: list[int]
    ranks: set[int]
    failed: bool = False


@dataclass(slots=True)
class Draw:
    """What is random about one step. `chunk`: most tokens of one request; `room`: blocks an admission must leave free."""

    chunk: int
    budget: int
    drafts: int
    accepted: int
    room: int


@dataclass(slots=True)
class _Tables:
    tables: dict[str, list[int]] = field(default_factory=dict)

    def get_block_ids(self, request_id: str) -> tuple[list[int]]:
        return (self.tables[request_id],)


class Scheduler:
    def __init__(
        self,
        half: SchedulerHalf,
        pool: BlockPool,
        memory: Memory,
        tier: Tier,
        ranks: int,
        depth: int,
        strict: bool,
        verdict: Verdict,
        seen: Counter[str],
    ) -> None:
        self._half = half
        self._pool = pool
        self._memory = memory
        self._tier = tier
        self._ranks = ranks
        self.depth = depth
        self._strict = strict
        self._verdict = verdict
        self._seen = seen
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.claims: dict[str, Claim] = {}
        self.batches: list[Batch] = []
        self._number = 0
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._refused: set[str] = set()
        self._fenced: list[tuple[int, list[int]]] = []

    # Requests come and go.

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self._half.new_request(request)

    def finish(self, request: Request) -> None:
        """Ended or aborted, whatever its status."""
        queue = self.running if request.status is Status.RUNNING else self.waiting
        queue.remove(request)
        kept = request.status is Status.LOADING and request.request_id not in self._received
        self._received.discard(request.request_id)
        self._failed.discard(request.request_id)
        request.status = Status.FINISHED
        self._half.finished(request.request_id)
        if not kept:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        self._free(request)
        del self.requests[request.request_id]

    def _free(self, request: Request) -> None:
        if request.in_flight:
            # A batch in flight still writes them, and a load into other hands would not wait for it.
            self._fenced.append((self._number, request.table))
        else:
            self._pool.free_blocks([self._pool.blocks[block] for block in reversed(request.table)])
        request.table = []

    def preempt(self, request: Request) -> None:
        self._seen["preempted"] += 1
        self.running.remove(request)
        self._free(request)
        request.status = Status.WAITING
        request.num_computed_tokens = request.placeholders = 0
        request.stale = request.in_flight
        request.life += 1
        self.waiting.insert(0, request)

    # One step.

    def schedule(self, draw: Draw) -> Batch:
        items: list[Item] = []
        claimed: dict[str, int] = {}
        budget = draw.budget
        before = list(self.running)
        for request in before:
            if request.status is Status.RUNNING and budget > 0:
                budget -= self._go_on(request, draw, budget, items)
        if len(self.running) == len(before):  # who had to make room must not come back in the same step
            self._admit(draw, budget, items, claimed)
        return self._build(items, claimed)

    def _go_on(self, request: Request, draw: Draw, budget: int, items: list[Item]) -> int:
        end = request.num_tokens + request.placeholders
        missing = end - request.num_computed_tokens
        drafts = draw.drafts if missing == 1 and request.num_tokens > request.num_prompt_tokens else 0
        count = min(missing + drafts, draw.chunk, budget)
        if count <= 0:
            return 0
        while not self._extend(request, request.num_computed_tokens + count):
            victim = self.running[-1]
            self.preempt(victim)
            if victim is request:
                return 0
        self._cache(request, request.num_computed_tokens + count)
        self._put(request, count, draw, items)
        return count

    def _extend(self, request: Request, end: int) -> bool:
        fresh = -(-end // BLOCK) - len(request.table)
        if fresh > len(self._pool.free):
            return False
        request.table = request.table + [block.block_id for block in self._pool.take(max(0, fresh))]
        return True

    def _cache(self, request: Request, end: int) -> None:
        self._pool.cache(request.table, request.block_hashes, min(end, request.num_tokens) // BLOCK)

    def _put(self, request: Request, count: int, draw: Draw, items: list[Item]) -> None:
        start = request.num_computed_tokens
        end = request.num_tokens + request.placeholders
        drafts = max(0, start + count - end)
        before = [item for batch in self.batches for item in batch.items if item.request is request and item.life == request.life]
        accepted = min(draw.accepted, drafts)
        items.append(Item(request, request.life, start, count, drafts, accepted, request.table, start + count >= end, before))

    def _admit(self, draw: Draw, budget: int, items: list[Item], claimed: dict[str, int]) -> None:
        # Who holds blocks comes first, or it could wait for ever behind one that has no room because of it.
        for request in sorted(self.waiting, key=lambda request: not request.table):
            if budget <= 0:
                return
            if request.status is Status.LOADING:
                if request.request_id not in self._received:
                    continue
                self._promote(request)
            if request.stale:
                continue
            found = 0
            tokens: int | None = 0
            if request.num_computed_tokens == 0:
                found = self._found(request)
                tokens, later = self._half.matched(request, found * BLOCK)
                if tokens is None:
                    continue
                self._verdict.demand(later == (tokens > 0), "a load that is not asynchronous")
                self._verdict.demand(found * BLOCK + tokens < request.num_tokens, "vLLM has to compute the last token")
                self._verdict.demand(not (tokens and request.claims_failed), f"{request.request_id} claims again")
            assert tokens is not None
            computed = request.num_computed_tokens or found * BLOCK + tokens
            count = 0 if tokens else min(request.num_tokens - computed, draw.chunk, budget)
            local = [self._pool.cached[content] for content in request.block_hashes[:found]]
            fresh = -(-(computed + count) // BLOCK) - len(request.table) - found
            whole = -(-request.num_tokens // BLOCK) - len(request.table) - found
            # A load is not preempted while it holds blocks: others that do need room to end.
            reserved = self._reserved() if tokens else 0
            room = len(self._pool.free) - sum(block.refs == 0 for block in local) - draw.room
            if max(fresh + reserved, whole) > room:
                return
            self._pool.touch(local)
            request.table = request.table + [block.block_id for block in local]
            request.table += [block.block_id for block in self._pool.take(max(0, fresh))]
            self._seen["local_hits"] += found > 0
            self._half.allocated(request, request.table, tokens)
            request.num_computed_tokens = computed
            if tokens:
                request.status = Status.LOADING
                claimed[request.request_id] = found
                continue
            self._cache(request, computed + count)
            self.waiting.remove(request)
            self.running.append(request)
            request.status = Status.RUNNING
            self._seen["resumed"] += request.life > 0
            budget -= count
            self._put(request, count, draw, items)

    def _reserved(self) -> int:
        """Blocks that prefills under way, running or loading, may still need (`_inflight_prefill_reserved_blocks`)."""
        return 1 + sum(
            max(0, -(-(request.num_tokens + SPECULATION) // BLOCK) - len(request.table))
            for request in self.requests.values()
            if request.table and request.num_computed_tokens < request.num_tokens
        )

    def _found(self, request: Request) -> int:
        """Blocks in vLLM's own prefix cache; the last token is always computed."""
        most = (request.num_tokens - 1) // BLOCK
        for index, content in enumerate(request.block_hashes[:most]):
            if content not in self._pool.cached:
                return index
        return most

    def _promote(self, request: Request) -> None:
        """Its load has been reported by every rank: what counts as computed has to be right."""
        self._received.remove(request.request_id)
        request.status = Status.WAITING
        if request.request_id in self._failed:
            self._failed.remove(request.request_id)
            if not request.num_computed_tokens:
                self._free(request)
        computed = request.num_computed_tokens
        right = self._memory.holds(request.table, request.rows(computed), computed)
        self._verdict.demand(right, f"{request.request_id} goes on with wrong rows after its load")
        self._cache(request, computed)
        if computed == request.num_tokens:
            request.num_computed_tokens -= 1

    def _build(self, items: list[Item], claimed: dict[str, int]) -> Batch:
        tables = _Tables({item.request.request_id: item.table for item in items})
        scheduled = {item.request.request_id: item.count for item in items}
        output = SimpleNamespace(num_scheduled_tokens=scheduled, kv_connector_block_state=tables)
        work = self._half.build(output)
        self._verdict.demand(sorted(load.request_id for load in work.loads) == sorted(claimed), "claims are not the ranks' loads")
        for load in work.loads:
            if load.request_id in claimed:
                self._claim(load, claimed[load.request_id])
        for order in work.saves.saves if work.saves is not None else ():
            for block in order.blocks:
                self._pool.to_read[block] += self._ranks
        for item in items:
            request = item.request
            request.num_computed_tokens += item.count
            request.in_flight += item.count
            if self.depth > 1 and item.samples:
                request.placeholders += 1 + item.drafts
        self._number += 1
        batch = Batch(self._number, items, work)
        self.batches.append(batch)
        return batch

    def _claim(self, load: Load, first: int) -> None:
        """What is claimed has to be what the request is now, out of the tier's present life."""
        request = self.requests[load.request_id]
        end = request.num_computed_tokens
        blocks = request.table[first : -(-end // BLOCK)]
        self._verdict.demand(list(load.blocks) == blocks, "a load into other blocks than it claims")
        self.claims[load.request_id] = Claim(first, blocks, set(range(self._ranks)))
        self._seen["claims"] += 1
        if load.refuse or load.lease is None:
            self._verdict.demand(self._strict, f"a refused load without strict decode: {load.refuse}")
            self._seen["refusals"] += 1
            return
        if load.lease.session != self._tier.session():
            self._verdict.demand(False, "a claim out of another session")
            return
        self._verdict.demand(self._tier.in_use(load.lease), "a claim without a lease in use")
        shards = self._tier.shards
        self._verdict.demand(
            len(load.slots) == len(load.generations) == len(blocks) * shards, "slots and blocks differ in number"
        )
        truth = request.rows(end)
        for place, number in enumerate(load.slots):
            start = (first + place // shards) * BLOCK
            rows = self._tier.page_of(number)
            wanted = truth[start : min(end, start + BLOCK)]
            self._verdict.demand(rows[: len(wanted)] == wanted, f"{load.request_id} claims a page that is not of it")

    # Its output.

    def deliver(self, batch: Batch) -> None:
        """`update_from_output`: the reports of the ranks, then the tokens."""
        self.batches.remove(batch)
        assert batch.collected is not None
        report, received = self._gather(batch.collected)
        while self._fenced and self._fenced[0][0] <= batch.number:
            _, table = self._fenced.pop(0)
            self._pool.free_blocks([self._pool.blocks[block] for block in reversed(table)])
        for item in batch.items:
            self._output(item)
        self._half.reported(report, received)
        for request_id in received:
            claim = self.claims.pop(request_id)
            request = self.requests[request_id]
            if request.status is Status.FINISHED:
                self._forget(request)
                continue
            self._received.add(request_id)
            request.claims_failed += claim.failed
            self._seen["loads_failed" if claim.failed else "loads_done"] += 1
            if claim.failed and self._strict:
                self.finish(request)

    def _gather(self, collected: list[Collected]) -> tuple[RankReport, set[str]]:
        report = RankReport()
        received: set[str] = set()
        for rank, own in enumerate(collected):
            report.add(own.report)
            for block in own.bad_blocks:
                self._truncate(block)
            self._refused |= own.refused
            for request_id in own.received:
                claim = self.claims.get(request_id)
                self._verdict.demand(
                    claim is not None and rank in claim.ranks, f"rank {rank} reports the load of {request_id} once too often"
                )
                if claim is not None:
                    claim.ranks.discard(rank)
                    if not claim.ranks:
                        received.add(request_id)
        for request_id in received & self._refused:
            self._fail(self.requests[request_id], 0)
        self._refused -= received
        return report, received

    def _truncate(self, block: int) -> None:
        owners = [request_id for request_id, claim in self.claims.items() if block in claim.blocks]
        self._verdict.demand(len(owners) == 1, f"block {block} is reported bad and is in {len(owners)} loads")
        for request_id in owners:
            request, claim = self.requests[request_id], self.claims[request_id]
            self._fail(request, (claim.first + claim.blocks.index(block)) * BLOCK)

    def _fail(self, request: Request, computed: int) -> None:
        claim = self.claims[request.request_id]
        claim.failed = True
        if request.status is Status.LOADING:
            request.num_computed_tokens = min(request.num_computed_tokens, computed)
            self._failed.add(request.request_id)

    def _output(self, item: Item) -> None:
        request = item.request
        request.in_flight -= item.count
        stale = item.life != request.life
        if stale:
            request.stale -= item.count
        if request.status is Status.FINISHED or not item.samples:
            return
        rejected, tokens = item.drafts - item.accepted, item.accepted + 1
        self._seen["rejected"] += rejected
        self._seen["late"] += stale
        if not stale:
            request.num_computed_tokens -= rejected
            if self.depth > 1:
                request.placeholders -= rejected + tokens
        request.grow(min(tokens, request.limit - request.num_tokens))
        if request.num_tokens >= request.limit:
            self.finish(request)

    # Looks.

    def references(self) -> dict[int, int]:
        """Block → references of requests, fenced ones included."""
        counts: dict[int, int] = {}
        for table in [request.table for request in self.requests.values()] + [table for _, table in self._fenced]:
            for block in table:
                counts[block] = counts.get(block, 0) + 1
        return counts
