"""vLLM's scheduler (0.32, `v1/core/sched/scheduler.py`) as far as a connector can tell, around the real scheduler half.

With more than one batch in flight an asynchronous scheduler counts optimistically: a batch is scheduled as if all
drafts of the one before it had been right, and a token that is not known yet is a placeholder (`async_scheduler.py`).
What happens when a batch's output comes is in `delivery.py`.
"""

from __future__ import annotations

from collections import Counter

from pegaflow.connector.load_tracker import Load
from pegaflow.connector.scheduler import SchedulerHalf

from oracle.batch import Batch, Claim, Draw, Item, output
from oracle.block_pool import BlockPool
from oracle.claims import check_claim
from oracle.ledger import Ledger
from oracle.memory import Memory
from oracle.prefixes import BLOCK
from oracle.request import Request, Status
from oracle.shape import Shape
from oracle.tier import Tier
from oracle.verdict import Verdict

SPECULATION = 4
"""Most tokens of a decode step: drafts and the one after them."""


class Scheduler:
    def __init__(
        self,
        half: SchedulerHalf,
        pool: BlockPool,
        memory: Memory,
        tier: Tier,
        shape: Shape,
        ledger: Ledger,
        verdict: Verdict,
        seen: Counter[str],
    ) -> None:
        self.half = half
        self.pool = pool
        self.tier = tier
        self.shape = shape
        self.verdict = verdict
        self.seen = seen
        self._memory = memory
        self._ledger = ledger
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.claims: dict[str, Claim] = {}
        self.batches: list[Batch] = []
        self.received: set[str] = set()
        self.failed: set[str] = set()
        # Non-empty batches: scheduled, and those whose output has come. What is fenced waits for the second to reach it.
        self.scheduled = self.processed = 0
        self.fenced: list[tuple[int, list[int]]] = []
        self._preempted: set[str] = set()

    # Requests come and go.

    def add(self, request: Request) -> None:
        request.era = self._ledger.era
        request.excused = self.tier.session() is None
        self.requests[request.request_id] = request
        self.waiting.append(request)
        self.half.new_request(request)

    def finish(self, request: Request) -> None:
        """Ended or aborted, whatever its status."""
        queue = self.running if request.status is Status.RUNNING else self.waiting
        queue.remove(request)
        kept = request.status is Status.LOADING and request.request_id not in self.received
        self.received.discard(request.request_id)
        self.failed.discard(request.request_id)
        request.status = Status.FINISHED
        self.half.finished(request.request_id)
        if not kept:
            self.forget(request)

    def forget(self, request: Request) -> None:
        self._free(request)
        del self.requests[request.request_id]

    def may_free(self, request: Request) -> bool:
        """`_request_blocks_can_be_freed`."""
        return not self.shape.fenced or request.sequence <= self.processed

    def _free(self, request: Request) -> None:
        if self.may_free(request):
            self.pool.free_blocks([self.pool.blocks[block] for block in reversed(request.table)])
        elif request.table:
            # A batch in flight still writes them, and a load into other hands would not wait for it.
            self.seen["fenced"] += 1
            self.fenced.append((self.scheduled, request.table))
        request.table = []

    def preempt(self, request: Request, drop_stale: bool = False) -> None:
        self.seen["preempted"] += 1
        self.seen["preempted_while_saved"] += any(self.pool.to_read[block] for block in request.table)
        self.seen["preempted_in_flight"] += request.in_flight > 0
        self.running.remove(request)
        request.left = request.table
        self._free(request)
        request.status = Status.WAITING
        request.num_computed_tokens = request.placeholders = 0
        request.decoding = False
        request.drop_stale = drop_stale or (request.drop_stale and request.stale > 0)
        request.stale = request.in_flight
        request.life += 1
        self.waiting.insert(0, request)
        self._preempted.add(request.request_id)

    def reset(self, running: bool) -> None:
        """`reset_prefix_cache`. With `running`, requests give up their blocks, and what is in flight for them is dropped."""
        while running and self.running:
            self.preempt(self.running[-1], drop_stale=True)
        self.seen["resets"] += self.pool.reset()

    # One step.

    def schedule(self, draw: Draw) -> Batch:
        items: list[Item] = []
        claimed: dict[str, int] = {}
        resumed: set[str] = set()
        fresh: set[str] = set()
        preempted = len(self._preempted)
        budget = draw.budget
        for request in list(self.running):
            if request.status is Status.RUNNING and budget > 0:
                count = self._go_on(request, draw, budget, items)
                if count is None:
                    break
                budget -= count
        if len(self._preempted) == preempted:  # who had to make room must not come back in the same step
            self._admit(draw, budget, items, claimed, resumed, fresh)
        return self._build(items, claimed, resumed, fresh)

    def _go_on(self, request: Request, draw: Draw, budget: int, items: list[Item]) -> int | None:
        """Tokens that a running request gets; None: vLLM looks at no other one."""
        if request.placeholders > 0 and request.num_computed_tokens + 2 - request.placeholders >= request.limit:
            return 0  # whatever is in flight for it ends it
        missing = request.num_tokens + request.placeholders - request.num_computed_tokens
        drafts = draw.drafts if missing == 1 and request.decoding and not request.resumable else 0
        count = min(missing + drafts, draw.chunk, budget)
        if count <= 0:
            return 0
        while not self._extend(request, request.num_computed_tokens + count):
            victim = self.running[-1]
            if not self.may_free(victim):
                return None
            self.preempt(victim)
            if victim is request:
                return None
        self.cache(request, request.num_computed_tokens + count)
        self._put(request, count, draw, items)
        return count

    def _extend(self, request: Request, end: int) -> bool:
        fresh = -(-end // BLOCK) - len(request.table)
        if fresh > len(self.pool.free):
            return False
        request.table = request.table + [block.block_id for block in self.pool.take(max(0, fresh))]
        return True

    def cache(self, request: Request, end: int) -> None:
        self.pool.cache(request.table, request.contents[: min(end, request.num_tokens) // BLOCK])

    def _put(self, request: Request, count: int, draw: Draw, items: list[Item], padded: int = 0) -> None:
        start = request.num_computed_tokens
        end = request.num_tokens + request.placeholders
        drafts = max(0, start + count - end)
        before = [item for batch in self.batches for item in batch.items if item.request is request and item.life == request.life]
        accepted = min(draw.accepted, drafts - padded)
        item = Item(request, request.life, start, count, drafts, accepted, request.table, start + count >= end, before)
        self.seen["scheduled_on_rejected"] += item.real_start < start
        items.append(item)

    def _admit(
        self, draw: Draw, budget: int, items: list[Item], claimed: dict[str, int], resumed: set[str], fresh: set[str]
    ) -> None:
        prefill = any(item.start + item.count < item.request.num_tokens for item in items)
        # Who holds blocks comes first, or it could wait for ever behind one that has no room because of it.
        for request in sorted(self.waiting, key=lambda request: not request.table):
            if budget <= 0:
                return
            if request.status is Status.LOADING:
                if request.request_id not in self.received:
                    continue
                self._promote(request)
            if request.stale and not request.drop_stale:
                continue
            found = 0
            tokens: int | None = 0
            asks = request.num_computed_tokens == 0
            if asks:
                found = self._found(request)
                tokens, later = self.half.matched(request, found * BLOCK)
                self.verdict.demand(not (request.skip_reading_prefix_cache and tokens), "a load that vLLM would forget")
                if tokens is None:
                    continue
                self.verdict.demand(later == (tokens > 0), "a load that is not asynchronous")
                self.verdict.demand(found * BLOCK + tokens < request.num_tokens, "vLLM has to compute the last token")
                self.verdict.demand(not (tokens and request.claims_failed), f"{request.request_id} claims again")
            assert tokens is not None
            computed = request.num_computed_tokens or found * BLOCK + tokens
            missing = request.num_tokens - computed
            padded = 0
            if not tokens and missing == 1 and draw.drafts and not prefill and (items or computed) and not request.resumable:
                padded = draw.drafts  # a uniform batch of decodes: the request gets drafts that nobody proposed
                if missing + padded > budget:
                    return
            count = 0 if tokens else missing + padded if padded else min(missing, draw.chunk, budget)
            local = [self.pool.blocks[block] for block in self._local(request, found)]
            fresh_blocks = -(-(computed + count) // BLOCK) - len(request.table) - found
            whole = -(-request.num_tokens // BLOCK) - len(request.table) - found
            # A load is not preempted while it holds blocks: others that do need room to end.
            reserved = self._reserved() if tokens else 0
            room = len(self.pool.free) - sum(block.refs == 0 for block in local) - draw.room
            if max(fresh_blocks + reserved, whole) > room:
                return
            if asks:
                self._ledger.admitted(request, found, tokens, self.tier.told.get(request.request_id))
            self.pool.touch(local)
            request.table = request.table + [block.block_id for block in local]
            request.table += [block.block_id for block in self.pool.take(max(0, fresh_blocks))]
            self.seen["local_hits"] += found > 0
            self.half.allocated(request, request.table, tokens)
            request.num_computed_tokens = computed
            if tokens:
                request.status = Status.LOADING
                claimed[request.request_id] = found
                continue
            self.cache(request, computed + count)
            self.waiting.remove(request)
            self.running.append(request)
            request.status = Status.RUNNING
            (resumed if request.life else fresh).add(request.request_id)
            self.seen["resumed"] += request.life > 0
            self.seen["resumed_elsewhere"] += request.left[: len(request.table)] != request.table[: len(request.left)]
            self.seen["padded"] += padded > 0
            budget -= count
            self._put(request, count, draw, items, padded)

    def _reserved(self) -> int:
        """Blocks that prefills under way, running or loading, may still need (`_inflight_prefill_reserved_blocks`)."""
        return 1 + sum(
            max(0, -(-(request.num_tokens + SPECULATION) // BLOCK) - len(request.table))
            for request in self.requests.values()
            if request.table and request.num_computed_tokens < request.num_tokens
        )

    def _found(self, request: Request) -> int:
        """Blocks in vLLM's own prefix cache; the last token is always computed."""
        if request.skip_reading_prefix_cache:
            return 0
        most = (request.num_tokens - 1) // BLOCK
        for index, content in enumerate(request.contents[:most]):
            if content not in self.pool.cached:
                return index
        return most

    def _local(self, request: Request, found: int) -> list[int]:
        return [next(iter(self.pool.cached[content])) for content in request.contents[:found]]

    def _promote(self, request: Request) -> None:
        """Its load has been reported by every rank: what counts as computed has to be right."""
        self.received.remove(request.request_id)
        request.status = Status.WAITING
        if request.request_id in self.failed:
            self.failed.remove(request.request_id)
            if not request.num_computed_tokens:
                self._free(request)
        computed = request.num_computed_tokens
        right = self._memory.holds(request.table, request.rows(computed), computed)
        self.verdict.demand(right, f"{request.request_id} goes on with wrong rows after its load")
        self.cache(request, computed)
        if computed == request.num_tokens:
            request.num_computed_tokens -= 1

    def _build(self, items: list[Item], claimed: dict[str, int], resumed: set[str], fresh: set[str]) -> Batch:
        work = self.half.build(output(items, resumed, fresh, self._preempted, self.shape.v2))
        self._preempted = set()
        self.verdict.demand(bool(items) or work.saves is None, "a save of a step that computes nothing")
        self.verdict.demand(sorted(load.request_id for load in work.loads) == sorted(claimed), "claims are not the ranks' loads")
        for load in work.loads:
            if load.request_id in claimed:
                self._claim(self.requests[load.request_id], load, claimed[load.request_id])
        for order in work.saves.saves if work.saves is not None else ():
            for block in order.blocks:
                self.pool.to_read[block] += self.shape.engine.ranks
        self.scheduled += bool(items)
        for item in items:
            request = item.request
            self._ledger.computed(request, item.start + item.count, item.table)
            request.num_computed_tokens += item.count
            request.in_flight += item.count
            request.sequence = self.scheduled
            request.decoding = request.num_computed_tokens >= request.num_tokens + request.placeholders
            if self.shape.asynchronous and item.samples:
                request.placeholders += 1 + item.drafts
        batch = Batch(items, work)
        self.batches.append(batch)
        return batch

    def _claim(self, request: Request, load: Load, first: int) -> None:
        end = request.num_computed_tokens
        blocks = request.table[first : -(-end // BLOCK)]
        self.claims[request.request_id] = Claim(first, blocks, set(range(self.shape.engine.ranks)))
        request.claimed = end
        check_claim(load, request, first, blocks, self.tier, self.shape, self.verdict, self.seen)

    # Looks.

    def references(self) -> dict[int, int]:
        """Block → references of requests, fenced ones included."""
        counts: dict[int, int] = {}
        for table in [request.table for request in self.requests.values()] + [table for _, table in self.fenced]:
            for block in table:
                counts[block] = counts.get(block, 0) + 1
        return counts
