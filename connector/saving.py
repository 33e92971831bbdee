"""Saves of the scheduler half: what a step completes is offered, published in one intent, and pinned until every rank has done.

step ─▶ offers ─▶ one intent ─▶ pins ─▶ the ranks copy ─▶ ended ─▶ unpin
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pegaflow.common.keys import Key
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.options import Options
from pegaflow.connector.request_keys import RequestKeys, plain
from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker
from pegaflow.connector.session import SchedulerBus
from pegaflow.connector.work import SaveOrder, SaveWork

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class Saving:
    """`requests`: those that are alive, by id; they are only read."""

    def __init__(
        self,
        options: Options,
        engine: Engine,
        keys: RequestKeys,
        requests: Mapping[str, Request],
        clock: Callable[[], float],
        counters: Counters,
        log: logging.Logger,
    ) -> None:
        self._keys, self._requests, self._clock = keys, requests, clock
        self._block_size, self._stripes = engine.block_size, engine.stripes
        self._wanted = options.saves
        self._counters, self._log = counters, log
        self._bus: SchedulerBus | None = None
        self._pool: BlockPool | None = None
        self._published_at: dict[int, float] = {}
        self.tracker = SaveTracker(engine.block_size, engine.ranks, options.pd_tail_save and engine.role != "kv_consumer")

    def connect(self, bus: SchedulerBus | None) -> None:
        """From now on intents go there. None: nothing is saved."""
        self._bus = bus

    def bind_pool(self, pool: BlockPool) -> None:
        self._pool = pool

    def new(self, request: Request) -> None:
        self.tracker.admitted(request.request_id, request.num_prompt_tokens, plain(request))

    def step(self, output: SchedulerOutput) -> SaveWork | None:
        """What this step makes saveable, published and pinned; and counts the prompt positions that it computes."""
        offers: list[Offer] = []
        saving = self._wanted and self._bus is not None and self._bus.session() is not None
        for request_id, scheduled in output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is None:
                continue
            computed = request.num_computed_tokens
            if computed < request.num_prompt_tokens:
                self._count_prompt(computed + scheduled, computed, request.num_prompt_tokens)
            if not saving:
                continue
            try:
                progress = Progress(request_id, computed, scheduled, request.num_tokens, self._keys.full_blocks(request))
                if self.tracker.wants(progress) and (offer := self._offer(progress, output)) is not None:
                    offers.append(offer)
            except Exception:
                self._leave_alone(request_id)
        return self._publish(offers) if offers else None

    def ended(self, saves: Mapping[int, int]) -> None:
        """Save → how many more ranks have ended it."""
        for save, ranks in saves.items():
            try:
                unpin = self.tracker.ended(save, ranks)
            except KeyError:  # a rank that reports twice must not cost the other saves their end
                self._counters.add("hook_errors", label="save_ended_twice")
                self._log.exception("save_ended_twice: save %d", save)
                continue
            if unpin is None:
                continue
            self._counters.observe("save_seconds", self._clock() - self._published_at.pop(save))
            if self._pool is not None:
                # Last block first: of a chain, the head is evicted last.
                self._pool.free_blocks([self._pool.blocks[block] for block in reversed(unpin.blocks)])

    def finished(self, request_id: str) -> None:
        """However it ended. Open saves go on."""
        self.tracker.finished(request_id)

    def _count_prompt(self, written: int, computed: int, prompt: int) -> None:
        self._counters.add("prompt_positions_computed", min(written, prompt) - computed)
        if written >= prompt:
            self._counters.add("prompt_last_positions_computed")

    def _offer(self, progress: Progress, output: SchedulerOutput) -> Offer | None:
        state = output.kv_connector_block_state
        tables = None if state is None else state.get_block_ids(progress.request_id)
        if not tables:
            self._counters.add("saves", label="no_block_table")
            return None
        return self.tracker.progressed(progress, tables[0])

    def _publish(self, offers: list[Offer]) -> SaveWork | None:
        keys: list[bytes] = []
        rows: list[int] = []
        stripes: list[int] = []
        requests: list[str] = []
        tails = 0
        good: list[Offer] = []
        for offer in offers:
            try:
                own = self._offer_keys(offer)
            except Exception:
                self._leave_alone(offer.request_id)
                continue
            good.append(offer)
            keys += own
            rows += [self._block_size] * len(own)
            if offer.tail_rows:
                rows[-1] = offer.tail_rows
                tails += 1
            stripes += [index % self._stripes for index in offer.indices]
            requests += [offer.request_id] * len(own)
        if not keys:
            self.tracker.published(good)
            return None
        assert self._bus is not None
        ref = self._bus.publish_intent(keys, rows, stripes, requests, tails)
        if ref is None:
            self._counters.add("saves", len(good), "not_published")
            return None
        now = self._clock()
        orders: list[SaveOrder] = []
        position = 0
        with_tail = {offer.request_id for offer in good if offer.tail_rows}
        for save in self.tracker.published(good):
            if self._pool is not None:
                self._pool.touch([self._pool.blocks[block] for block in save.pins])
            self._published_at[save.save] = now
            orders.append(SaveOrder(save.save, position, save.blocks, save.request_id in with_tail))
            position += len(save.blocks)
        return SaveWork(ref, tuple(orders))

    def _leave_alone(self, request_id: str) -> None:
        """One request that goes wrong must not cost the others their save, nor be tried in every step."""
        self.tracker.finished(request_id)
        self._counters.add("saves", label="offer_failed")
        self._log.exception("offer_failed: request %s is not saved any more", request_id)

    def _offer_keys(self, offer: Offer) -> list[Key]:
        request = self._requests[offer.request_id]
        indices = offer.indices[:-1] if offer.tail_rows else offer.indices
        keys = [self._keys.block(request, index) for index in indices]
        if offer.tail_rows:
            keys.append(self._keys.end(request, request.num_prompt_tokens))
        return keys
