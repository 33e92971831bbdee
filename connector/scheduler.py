"""The scheduler half: turns what vLLM's scheduler does into events of the trackers, and their commands into calls.

    on_new_request ─▶ lookup ─▶ get_num_new_matched_tokens ─▶ update_state_after_alloc ─▶ build (loads)
    build (saves): offer ─▶ publish one intent ─▶ pin ─▶ ranks copy ─▶ update_connector_output: unpin

It neither blocks nor touches pages. vLLM objects are taken as they are and only read (`v1/request.py`,
`v1/core/block_pool.py`), so tests can drive it with stand-ins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pegaflow.common.keys import Key, key
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.load_plan import LoadPlan, load_plan
from pegaflow.connector.load_tracker import Ask, Cancel, Command, Load, Loaded, LoadTracker, Release, Version
from pegaflow.connector.options import Options
from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker
from pegaflow.connector.session import LookupAnswer, SchedulerBus, SessionId
from pegaflow.connector.work import RankReport, SaveOrder, SaveWork, StepWork

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

TailHash = Callable[[bytes | None, Sequence[int]], bytes]
"""vLLM's block hash over `(parent, ids, None)`; parent None stands for NONE_HASH."""

RPC_MARGIN_S = 2.0
"""On top of the wait: the bus ends a lookup after wait + 1 s, and this is the net below it."""


class SchedulerHalf:
    """`log`: where refused requests and mishaps go, with a stable code first."""

    def __init__(
        self,
        options: Options,
        engine: Engine,
        tail_hash: TailHash,
        clock: Callable[[], float],
        counters: Counters,
        log: logging.Logger,
        *,
        seed_agrees: Callable[[], bool],
    ) -> None:
        self._options = options
        self._block_size = engine.block_size
        self._hashes_per_block = engine.block_size // engine.hash_block_size
        self._stripes = engine.stripes
        self._tail_hash = tail_hash
        self._clock = clock
        self._counters = counters
        self._log = log
        self._seed_agrees = seed_agrees
        self._seed_checked = False
        self._off = False
        self._bus: SchedulerBus | None = None
        self._fingerprint = b""
        self._pool: BlockPool | None = None
        self._requests: dict[str, Request] = {}
        self._loads: list[Load] = []
        self._failed: dict[str, str] = {}
        self._refused: set[str] = set()
        self._step = 0
        wait_s = options.wait_ms / 1000
        self.saves = SaveTracker(engine.block_size, engine.ranks, options.pd_tail_save and engine.role != "kv_consumer")
        self.loads = LoadTracker(engine.block_size, engine.shards, options.strict, wait_s + RPC_MARGIN_S)

    def connect(self, bus: SchedulerBus, fingerprint: bytes) -> None:
        """From now on there is a way to the tier. Before, every lookup is a miss and nothing is saved."""
        self._bus = bus
        self._fingerprint = fingerprint

    def bind_pool(self, pool: BlockPool) -> None:
        self._pool = pool

    # Hooks, in the order in which a request meets them.

    def new_request(self, request: Request) -> None:
        """The lookup starts here, so that the answer is often there when vLLM first asks."""
        self._check_seed()
        self._requests[request.request_id] = request
        self.saves.admitted(request.request_id, request.num_prompt_tokens, _plain(request))
        if self._options.loads and not request.skip_reading_prefix_cache and not request.abort_immediately:
            self._ask(request, self._local_blocks(request))

    def matched(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """`get_num_new_matched_tokens`: tokens after the `computed` ones that will be loaded, asynchronously."""
        if not self._options.loads or request.skip_reading_prefix_cache or computed % self._block_size:
            return 0, False
        self._take_answers()
        request_id = request.request_id
        match = self.loads.matched(request_id, _version(request), computed, self._session(), self._clock())
        if match.ask:
            self._run(match.commands)
            self._ask(request, computed // self._block_size)
            match = self.loads.matched(request_id, _version(request), computed, self._session(), self._clock())
        self._run(match.commands)
        if match.refuse and request_id not in self._refused:
            self._refused.add(request_id)
            self._counters.add("requests_refused", label=match.refuse)
            self._log.error(
                "strict_decode_refused: request %s: %s; %d of %d prompt ids would have to be computed here",
                request_id,
                match.refuse,
                match.tokens,
                request.num_prompt_tokens,
            )
        return match.tokens, bool(match.tokens)

    def allocated(self, request: Request, table: Sequence[int], tokens: int) -> None:
        """`update_state_after_alloc`: `tokens` are to be loaded into the request's blocks, or nothing is."""
        self._run(self.loads.allocated(request.request_id, tokens, table))

    def build(self, output: SchedulerOutput) -> StepWork:
        """`build_connector_meta`: the loads that were claimed in this step, and the saves that it makes possible."""
        self._step += 1
        loads, self._loads = tuple(self._loads), []
        saves: SaveWork | None = None
        try:
            self._take_answers()
            saves = self._save(output)
        except Exception:
            # The loads must reach the ranks whatever happens here: vLLM waits for them.
            self._counters.add("hook_errors", label="build")
            self._log.exception("hook_failed: build; this step saves nothing")
        return StepWork(self._step, saves, loads)

    def reported(self, report: RankReport | None, received: Iterable[str]) -> None:
        """`update_connector_output`: what the ranks have ended; `received` by every rank."""
        if report is not None:
            for save, ranks in report.ended.items():
                if (unpin := self.saves.ended(save, ranks)) is not None and self._pool is not None:
                    pool = self._pool
                    # Last block first: of a chain, the head is evicted last.
                    pool.free_blocks([pool.blocks[block] for block in reversed(unpin.blocks)])
            self._failed.update(report.failed)
        for request_id in received:
            code = self._failed.pop(request_id, "")
            self._counters.add("loads", label=code or "done")
            self._run(self.loads.received(request_id, bool(code)))

    def finished(self, request_id: str) -> None:
        """`request_finished`: however it ended. Open saves and a running load go on."""
        self._requests.pop(request_id, None)
        self._refused.discard(request_id)
        self.saves.finished(request_id)
        self._run(self.loads.finished(request_id))

    def busy(self) -> bool:
        """Whether an engine without requests has to go on stepping."""
        return bool(self.saves.open_saves or self.loads.open_lookups or self._counters)

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()

    # Loading.

    def _ask(self, request: Request, first: int) -> None:
        plain = _plain(request)
        plan = load_plan(
            prompt=request.num_prompt_tokens,
            known=request.num_tokens,
            block_size=self._block_size,
            first=first,
            tails=self._options.pd_tail_load and plain,
            strict=self._options.strict,
        )
        # Hashes may lag behind the ids: where they do not reach, nothing is asked.
        plan = plan if plan.last <= self._hashes(request) else LoadPlan(first, self._hashes(request), ())
        commands = self.loads.asked(request.request_id, request.num_prompt_tokens, _version(request), plan, self._clock())
        for command in commands:
            if isinstance(command, Ask):
                self._send(command, request)
            else:
                self._run([command])

    def _send(self, ask: Ask, request: Request) -> None:
        sent = False
        if self._bus is not None and self._session() is not None:
            keys = [self._block_key(request, index) for index in range(ask.plan.first, ask.plan.last)]
            tails = [self._end_key(request, end) for end in ask.plan.tails]
            params: Mapping[str, Any] = request.kv_transfer_params or {}
            expected = self._options.strict or params.get("pegaflow_expected") is True
            wait_s = self._options.wait_ms / 1000
            sent = self._bus.lookup(ask.lookup, ask.request_id, keys, tails, wait_s, expected)
        if not sent:
            self._counters.add("lookups", label="no_tier")
            self.loads.unanswerable(ask.lookup)

    def _take_answers(self) -> None:
        if self._bus is not None:
            for answer in self._bus.drain():
                self._count(answer)
                self._run(self.loads.answered(answer))

    def _count(self, answer: LookupAnswer) -> None:
        outcome = "hit" if answer.full or answer.tail >= 0 else answer.code or "miss"
        self._counters.add("lookups", label=outcome)
        self._counters.add("lookup_pages", answer.sources.count(0), "local")
        self._counters.add("lookup_pages", answer.sources.count(1), "remote")

    def _run(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Release(lease):
                    if self._bus is not None:
                        self._bus.release(lease)
                case Cancel(lookup):
                    self._counters.add("lookups", label="cancelled")
                    if self._bus is not None:
                        self._bus.cancel(lookup)
                case Load():
                    self._loads.append(command)
                    if command.lease is not None and self._bus is not None:
                        self._bus.loading(command.lease)
                case Loaded(request_id, first, last):
                    self.saves.loaded(request_id, first, last)
                case Ask():
                    raise AssertionError("a lookup needs its request")

    # Saving.

    def _save(self, output: SchedulerOutput) -> SaveWork | None:
        offers: list[Offer] = []
        saving = self._options.saves and self._bus is not None and self._session() is not None
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
                progress = Progress(request_id, computed, scheduled, request.num_tokens, self._hashes(request))
                if self.saves.wants(progress) and (offer := self._offer(progress, output)) is not None:
                    offers.append(offer)
            except Exception:
                self._leave_alone(request_id)
        return self._publish(offers) if offers else None

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
        return self.saves.progressed(progress, tables[0])

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
            self.saves.published(good)
            return None
        assert self._bus is not None
        ref = self._bus.publish_intent(keys, rows, stripes, requests, tails)
        if ref is None:
            self._counters.add("saves", len(good), "not_published")
            return None
        orders: list[SaveOrder] = []
        position = 0
        with_tail = {offer.request_id for offer in good if offer.tail_rows}
        for save in self.saves.published(good):
            if self._pool is not None:
                self._pool.touch([self._pool.blocks[block] for block in save.pins])
            orders.append(SaveOrder(save.save, position, save.blocks, save.request_id in with_tail))
            position += len(save.blocks)
        return SaveWork(ref, tuple(orders))

    def _leave_alone(self, request_id: str) -> None:
        """One request that goes wrong must not cost the others their save, nor be tried in every step."""
        self.saves.finished(request_id)
        self._counters.add("saves", label="offer_failed")
        self._log.exception("offer_failed: request %s is not saved any more", request_id)

    def _offer_keys(self, offer: Offer) -> list[Key]:
        request = self._requests[offer.request_id]
        indices = offer.indices[:-1] if offer.tail_rows else offer.indices
        keys = [self._block_key(request, index) for index in indices]
        if offer.tail_rows:
            keys.append(self._end_key(request, request.num_prompt_tokens))
        return keys

    # Keys.

    def _hashes(self, request: Request) -> int:
        return len(request.block_hashes) // self._hashes_per_block

    def _block_hash(self, request: Request, index: int) -> bytes:
        return request.block_hashes[(index + 1) * self._hashes_per_block - 1]

    def _block_key(self, request: Request, index: int) -> Key:
        return key(self._fingerprint, self._block_hash(request, index))

    def _end_key(self, request: Request, end: int) -> Key:
        """Key of the page that ends with the prompt's first `end` ids."""
        full, rest = divmod(end, self._block_size)
        if rest == 0:
            return self._block_key(request, full - 1)
        parent = self._block_hash(request, full - 1) if full else None
        assert request.prompt_token_ids is not None
        return key(self._fingerprint, self._tail_hash(parent, request.prompt_token_ids[end - rest : end]))

    def _local_blocks(self, request: Request) -> int:
        """How many blocks vLLM will probably find in its own cache: these need no lookup and no fetch."""
        pool = self._pool
        if pool is None or not pool.enable_caching or self._hashes_per_block != 1:
            return 0
        most = min((request.num_tokens - 1) // self._block_size, len(request.block_hashes))
        for index in range(most):
            if pool.get_cached_block(request.block_hashes[index], [0]) is None:
                return index
        return most

    # The tier.

    def _session(self) -> SessionId | None:
        return None if self._bus is None or self._off else self._bus.session()

    def _check_seed(self) -> None:
        if self._seed_checked:
            return
        self._seed_checked = True
        if not self._seed_agrees():
            self._off = True
            self._counters.add("hook_errors", label="none_hash_differs")
            self._log.error(
                "none_hash_differs: vLLM's NONE_HASH is not the one in the fingerprint; this engine goes on without cache"
            )


def _plain(request: Request) -> bool:
    """Whether the ids alone decide the KV of a request, so that its tail has a key anyone can derive."""
    return not (
        request.lora_request
        or request.cache_salt
        or request.mm_features
        or request.prompt_embeds is not None
        or request.prompt_token_ids is None
        or request.resumable
    )


def _version(request: Request) -> Version:
    return request.num_tokens, request.block_hashes[-1] if request.block_hashes else b""
