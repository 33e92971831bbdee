"""The class that vLLM loads (`kv_connector_module_path: pegaflow.connector`, `kv_connector: PegaKVConnector`).

vLLM makes one object in the engine core (scheduler role) and one in each worker (worker role). This class only
sorts vLLM's calls to the two halves and keeps errors away from vLLM; what is decided, is decided in `scheduler.py`,
`worker.py` and the trackers.

    start:  worker: register_kv_caches ─▶ rank attaches ─▶ get_handshake_metadata (its page layout)
            engine core: set_xfer_handshake_metadata_pp_aware (all layouts) ─▶ scheduler half attaches

Start-up is the only place that raises: what must not run is refused there with what to change.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from pegaflow.common import faults
from pegaflow.common.clock import now
from pegaflow.common.keys import fingerprint
from pegaflow.common.wire.errors import LocalError
from pegaflow.connector.bus import RankBus, SchedulerBus
from pegaflow.connector.copy import make_copier
from pegaflow.connector.cores import unbound
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import describe_engine
from pegaflow.connector.fingerprint import base_factors, none_hash_value, with_layouts
from pegaflow.connector.guard import guarded
from pegaflow.connector.options import StartRefused, parse_options
from pegaflow.connector.refusals import refuse_unsupported
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.session import AttachState, Member, Pool, TierOptions
from pegaflow.connector.stats import PegaPromMetrics, PegaStats
from pegaflow.connector.work import RankReport, StepWork
from pegaflow.connector.worker import Collected, RankHalf
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.metrics.cache_hit_source import CacheHitSource

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Scheduler half → ranks, with each step."""

    work: StepWork


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    """Ranks → scheduler half, added up by vLLM."""

    report: RankReport = field(default_factory=RankReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        if isinstance(other, ReportMetadata):
            self.report.add(other.report)
        return self


@dataclass
class LayoutMetadata(KVConnectorHandshakeMetadata):
    """One rank's page layout, for the engine's fingerprint."""

    shard: int
    digest: bytes
    page_bytes: int


class PegaKVConnector(KVConnectorBase_V1, SupportsHMA):
    _cache_hit_source = CacheHitSource.EXTERNAL_UNSPECIFIED

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        # Under vLLM's own logger, because vLLM leaves others without a handler.
        self._log = init_logger("vllm.pegaflow")
        self._counters = Counters()
        _arm_faults(self._log)
        self._options = parse_options(self._kv_transfer_config.kv_connector_extra_config)
        self._engine = describe_engine(vllm_config, kv_cache_config)
        refuse_unsupported(self._options, self._engine)
        self._none_hash = none_hash_value(self._engine.hash_algorithm)
        self._factors = base_factors(self._engine, self._none_hash)
        self._attach_wait_s = self._options.request_timeout_ms / 1000
        self._scheduler: SchedulerHalf | None = None
        self._rank: RankHalf | None = None
        self._layout: LayoutMetadata | None = None
        self._collected = Collected()
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(
                self._options,
                self._engine,
                _tail_hash(self._engine.hash_algorithm),
                now,
                self._counters,
                self._log,
                seed_agrees=self._seed_agrees,
            )

    @property
    def requires_kv_delivery(self) -> bool:
        # Best effort: pins keep a save safe whatever happens to its request.
        return False

    # Start, worker role.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        engine = self._engine
        copier = make_copier(kv_caches, engine.num_blocks, engine.block_size)
        member = self._member()
        layout = copier.layout
        self._layout = LayoutMetadata(member.shard, layout.digest, layout.page_bytes)

        def on_session(pool: Pool | None) -> None:
            try:
                copier.pin(None if pool is None else pool.memory)
            except Exception:  # slower, not wrong
                self._log.exception("pin_failed: the pool is not pinned, copies will stage")

        # With the model on a CPU, this thread is bound to a compute core; the connector's own must not inherit that.
        with unbound(not copier.on_device):
            bus = RankBus(
                self._tier_options(),
                member,
                fingerprint(self._factors),
                layout.digest,
                layout.page_bytes,
                clock=now,
                on_session=on_session,
                gpu=copier.on_device,
            )
            try:
                state = bus.wait_attached(self._attach_wait_s)
            except BaseException:
                bus.close()
                raise
            self._say(state, f"rank {member.rank}, pages of {layout.page_bytes} bytes")
            self._rank = RankHalf(copier, bus, member, now, self._counters, self._log)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._layout

    # Start, scheduler role.

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        if self._scheduler is not None:
            self._scheduler.bind_pool(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        if self._scheduler is None:
            return
        layouts = _layouts([m for m in metadata.values() if isinstance(m, LayoutMetadata)], self._engine.shards)
        digests = [layout.digest for layout in layouts]
        factors = with_layouts(self._factors, digests)
        member = Member(self._engine.engine_id, "scheduler", 0, 0, self._engine.shards, 0, self._engine.stripes)
        full = fingerprint(factors)
        bus = SchedulerBus(
            self._tier_options(),
            member,
            fingerprint(self._factors),
            full,
            factors,
            digests,
            [layout.page_bytes for layout in layouts],
            clock=now,
        )
        try:
            state = bus.wait_attached(self._attach_wait_s)
        except BaseException:
            bus.close()
            raise
        self._say(state, f"scheduler half, fingerprint {full.hex()}")
        self._scheduler.connect(bus, full)

    # Hooks, scheduler role.

    @guarded(lambda: None)
    def on_new_request(self, request: Request) -> None:
        if self._scheduler is not None:
            self._scheduler.new_request(request)

    @guarded(lambda: (0, False))
    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    @guarded(lambda: None)
    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        table = blocks.get_block_ids()[0] if num_external_tokens else ()
        self._scheduler.allocated(request, table, num_external_tokens)

    @guarded(lambda: StepMetadata(StepWork(0)))
    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        assert self._scheduler is not None
        return StepMetadata(self._scheduler.build(scheduler_output))

    @guarded(lambda: None)
    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        assert self._scheduler is not None
        meta = connector_output.kv_connector_worker_meta
        report = meta.report if isinstance(meta, ReportMetadata) else None
        self._scheduler.reported(report, connector_output.finished_recving or ())

    @guarded(lambda: (False, None))
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finished(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.busy()

    def reset_cache(self) -> bool | None:
        # The tier is shared with other engines; what it holds is named by what was computed, not by when.
        self._log.warning("reset_unsupported: the tier's pages are not dropped; a changed model needs a new engine")
        return False

    # Hooks, worker role.

    @guarded(lambda: None)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        # The first hook of a step, before the forward pass: a load that starts here gains a whole pass.
        if self._rank is not None and isinstance(kv_connector_metadata, StepMetadata):
            self._rank.start_loads(kv_connector_metadata.work)

    @guarded(lambda: None)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._connector_metadata
        if self._rank is not None and isinstance(meta, StepMetadata):
            self._rank.start_loads(meta.work)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        return

    @guarded(lambda: None)
    def wait_for_save(self) -> None:
        meta = self._connector_metadata
        if self._rank is not None and isinstance(meta, StepMetadata) and meta.work.saves is not None:
            self._rank.start_saves(meta.work.saves)

    @guarded(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        # The first of a step's reports; the others tell what was collected here, so that no report overtakes another.
        if self._rank is not None:
            self._collected = self._rank.collect()
        return KVConnectorTransferResults(finished_recving=self._collected.received, failed_recving=self._collected.refused)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._collected.bad_blocks

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self._collected.report
        self._collected = Collected()
        return ReportMetadata(report) if report else None

    # Both roles.

    @guarded(lambda: None)
    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        values = self._counters.take()
        return PegaStats(values) if values else None

    @guarded(lambda: None)
    def shutdown(self) -> None:
        if self._rank is not None:
            self._rank.close()
            self._rank = None
        if self._scheduler is not None:
            self._scheduler.close()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        return PegaStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        return PegaPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _member(self) -> Member:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        engine = self._engine
        tp_rank, pp_rank = get_tp_group().rank_in_group, get_pp_group().rank_in_group
        return Member(
            engine.engine_id,
            "rank",
            pp_rank * engine.tp + tp_rank,
            engine.shard(tp_rank, pp_rank),
            engine.shards,
            engine.stripe(tp_rank),
            engine.stripes,
        )

    def _tier_options(self) -> TierOptions:
        options = self._options
        return TierOptions(
            options.tier,
            options.runtime_dir,
            options.mode.value,
            options.request_timeout_ms / 1000,
            options.wait_ms / 1000,
        )

    def _say(self, state: AttachState, who: str) -> None:
        if state is AttachState.ATTACHED:
            self._log.info("attached: %s, to the tier at %s", who, self._options.tier)
        else:
            self._log.warning(
                "tier_absent: %s: no tier at %s; the engine starts without cache and goes on trying", who, self._options.tier
            )

    def _seed_agrees(self) -> bool:
        from vllm.v1.core import kv_cache_utils

        return bool(self._none_hash == kv_cache_utils.NONE_HASH)


def _arm_faults(log: logging.Logger) -> None:
    try:
        faults.arm(os.environ)
    except LocalError as error:
        raise StartRefused(error.code, error.text) from None
    if faults.armed():
        log.warning("faults_armed: %s is set: this process may stop, fail or die on purpose; for tests only", faults.VARIABLE)


def _tail_hash(algorithm: str) -> Any:
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import BlockHash, hash_block_tokens

    function = get_hash_fn_by_name(algorithm)

    def tail_hash(parent: bytes | None, token_ids: Sequence[int]) -> bytes:
        return hash_block_tokens(function, None if parent is None else BlockHash(parent), token_ids, None)

    return tail_hash


def _layouts(found: Sequence[LayoutMetadata], shards: int) -> list[LayoutMetadata]:
    """One layout per shard. Raises StartRefused where ranks that share a shard (MLA) differ, or one is missing."""
    by_shard: dict[int, LayoutMetadata] = {}
    for layout in found:
        if by_shard.setdefault(layout.shard, layout) != layout:
            raise StartRefused("layouts_differ", f"ranks of shard {layout.shard} have different page layouts")
    if sorted(by_shard) != list(range(shards)):
        raise StartRefused("layouts_missing", f"page layouts of shards {sorted(by_shard)} are known, {shards} are needed")
    return [by_shard[shard] for shard in range(shards)]
