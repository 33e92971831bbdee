"""The scheduler half: turns what vLLM's scheduler does into calls of `Loading` and `Saving`.

    on_new_request ─▶ lookup ─▶ get_num_new_matched_tokens ─▶ update_state_after_alloc ─▶ build (loads)
    build (saves): offer ─▶ publish one intent ─▶ pin ─▶ ranks copy ─▶ update_connector_output: unpin

It neither blocks nor touches pages. vLLM objects are taken as they are and only read (`v1/request.py`,
`v1/core/block_pool.py`), so tests can drive it with stand-ins.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pegaflow.common.transfer_params import ASK_SAVED, SAVED
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.loading import Loading
from pegaflow.connector.options import OnReset, Options
from pegaflow.connector.request_keys import RequestKeys, TailHash
from pegaflow.connector.saving import Saving
from pegaflow.connector.session import SchedulerBus
from pegaflow.connector.work import RankReport, SaveWork, StepWork

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class SchedulerHalf:
    """`log`: where refused requests and mishaps go, with a stable code first. `random`: that many bytes nobody can guess."""

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
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._options = options
        self._counters = counters
        self._log = log
        self._seed_agrees = seed_agrees
        self._random = random
        self._seed_checked = False
        self._bus: SchedulerBus | None = None
        self._pool: BlockPool | None = None
        self._requests: dict[str, Request] = {}
        self._failed: dict[str, str] = {}
        self._step = 0
        self.keys = RequestKeys(engine.block_size, engine.hash_block_size, tail_hash)
        self.saving = Saving(options, engine, self.keys, self._requests, clock, counters, log)
        self.loading = Loading(options, engine, self.keys, clock, counters, log, self.saving.tracker.loaded)
        self.saves, self.loads = self.saving.tracker, self.loading.tracker
        counters.watch("scheduler", self._gauges)

    def connect(self, bus: SchedulerBus, fingerprint: bytes) -> None:
        """From now on there is a way to the tier. Before, every lookup is a miss and nothing is saved."""
        self._bus = bus
        self.keys.fingerprint = fingerprint
        self._route(bus)

    @property
    def connected(self) -> bool:
        return self._bus is not None

    def bind_pool(self, pool: BlockPool) -> None:
        self._pool = pool
        self.saving.bind_pool(pool)

    # Hooks, in the order in which a request meets them.

    def new_request(self, request: Request) -> None:
        """The lookup starts here."""
        self._check_seed()
        self._requests[request.request_id] = request
        self.saving.new(request)
        if self._options.loads and not request.skip_reading_prefix_cache and not request.abort_immediately:
            self.loading.new(request, self.keys.cached_blocks(request, self._pool))

    def matched(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """`get_num_new_matched_tokens`: tokens after the `computed` ones that will be loaded, asynchronously."""
        if not self._options.loads or request.skip_reading_prefix_cache:
            return 0, False
        return self.loading.matched(request, computed)

    def allocated(self, request: Request, table: Sequence[int], tokens: int) -> None:
        """`update_state_after_alloc`: `tokens` are to be loaded into the request's blocks, or nothing is."""
        self.loading.allocated(request.request_id, table, tokens)

    def sources(self, request: Request) -> Mapping[int, int]:
        """`get_external_cache_hit_sources`: tokens that the load just claimed brings, by number of `loading.SOURCES`."""
        return self.loads.sources(request.request_id)

    def build(self, output: SchedulerOutput) -> StepWork:
        """`build_connector_meta`: the loads that were claimed in this step, and the saves that it makes possible."""
        self._step += 1
        loads = self.loading.claimed()
        saves: SaveWork | None = None
        try:
            self.loading.take_answers()
            saves = self.saving.step(output)
        except Exception:
            # The loads must reach the ranks whatever happens here: vLLM waits for them.
            self._counters.add("hook_errors", label="build")
            self._log.exception("hook_failed: build; this step saves nothing")
        return StepWork(self._step, saves, loads)

    def reported(self, report: RankReport | None, received: Iterable[str]) -> None:
        """`update_connector_output`: what the ranks have ended; `received` by every rank, also what others loaded."""
        if report is not None:
            self.saving.ended(report.ended)
            self._failed.update(report.failed)
        for request_id in received:
            self.loading.received(request_id, self._failed.pop(request_id, ""))

    def finished(self, request_id: str) -> dict[str, Any] | None:
        """`request_finished`: however it ended. Open saves and a running load go on. Returns what its client asked to be told."""
        request = self._requests.pop(request_id, None)
        told = self._told(request)
        self.saving.finished(request_id)
        self.loading.finished(request_id)
        return told

    def _told(self, request: Request | None) -> dict[str, Any] | None:
        """Without pages that were offered to a tier nobody has to wait for them elsewhere. Only where it is asked for: beside
        another connector that has something to tell vLLM does not take two answers."""
        params = request.kv_transfer_params if request is not None else None
        if request is None or not params or params.get(ASK_SAVED) is not True:
            return None
        return {SAVED: self.saves.prompt_offered(request.request_id)}

    def busy(self) -> bool:
        """Whether an engine without requests has to go on stepping."""
        return bool(self.saves.open_saves or self.loads.open_lookups or self._counters)

    def reset(self) -> bool:
        """`reset_cache`: nothing that was saved before, here or elsewhere, is found any more. False: not now.

        vLLM calls it after its own reset, which fails while blocks are in use. What is in such blocks was computed before, and
        would be saved under a name for what is computed from now on.
        """
        if self._options.on_reset is OnReset.KEEP:
            self._log.info("reset_kept: the tier's pages stay valid for this engine (pegaflow.on_reset is keep)")
            return True
        pool = self._pool
        if self.saves.open_saves or self.loads.open_loads or (pool is not None and not _unused(pool)):
            self._log.warning("reset_refused: blocks are in use; try again when no request, save or load is under way")
            return False
        self.keys.secret = self._random(16)
        self.loading.reset()
        self.saves.reset()
        self._counters.add("cache_resets")
        self._log.warning(
            "reset_done: this engine finds nothing that was saved before, and shares what it saves from now on with nobody "
            "until it is started anew"
        )
        return True

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()

    def _route(self, bus: SchedulerBus | None) -> None:
        self.saving.connect(bus)
        self.loading.connect(bus)

    def _gauges(self) -> dict[str, int]:
        return {
            "open_saves": self.saves.open_saves,
            "open_loads": self.loads.open_loads,
            "open_lookups": self.loads.open_lookups,
            "open_leases": self.loads.open_leases,
            "tier_attached": int(self._bus is not None and self._bus.session() is not None),
        }

    def _check_seed(self) -> None:
        if self._seed_checked:
            return
        self._seed_checked = True
        if not self._seed_agrees():
            self._route(None)
            self._counters.add("hook_errors", label="none_hash_differs")
            self._log.error(
                "none_hash_differs: vLLM's NONE_HASH is not the one in the fingerprint; this engine goes on without cache"
            )


def _unused(pool: BlockPool) -> bool:
    """No block but vLLM's null block is referenced."""
    return bool(pool.get_num_free_blocks() >= pool.num_gpu_blocks - 1)
