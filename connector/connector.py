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
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from pegaflow.common import faults
from pegaflow.common.wire.errors import LocalError
from pegaflow.connector.assembly import Assembly
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import describe_engine
from pegaflow.connector.guard import guarded
from pegaflow.connector.metadata import LayoutMetadata, ReportMetadata, StepMetadata
from pegaflow.connector.options import StartRefused, parse_options
from pegaflow.connector.scheduler import SchedulerHalf
from pegaflow.connector.stats import PegaPromMetrics, PegaStats
from pegaflow.connector.work import RankLayout, StepWork
from pegaflow.connector.worker import Collected, RankHalf
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
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


HIT_SOURCES = {0: CacheHitSource.HOST, 1: CacheHitSource.P2P, 2: CacheHitSource.DISK}
"""Source of a page as the tier tells it (`loading.SOURCES`) → vLLM's name for it."""


class PegaKVConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        # Under vLLM's own logger, because vLLM leaves others without a handler.
        self._log = init_logger("vllm.pegaflow")
        self._counters = Counters()
        _arm_faults(self._log)
        options = parse_options(self._kv_transfer_config.kv_connector_extra_config)
        self._attach_wait_s = options.request_timeout_ms / 1000
        self._assembly = Assembly(options, describe_engine(vllm_config, kv_cache_config), self._counters, self._log)
        self._scheduler: SchedulerHalf | None = None
        self._rank: RankHalf | None = None
        self._layout: RankLayout | None = None
        self._layouts: tuple[RankLayout, ...] = ()
        self._collected = Collected()
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._assembly.scheduler_half()

    @property
    def requires_kv_delivery(self) -> bool:
        # Best effort: pins keep a save safe whatever happens to its request.
        return False

    # Start, worker role.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        tp_rank, pp_rank = get_tp_group().rank_in_group, get_pp_group().rank_in_group
        self._rank, self._layout = self._assembly.rank_half(kv_caches, tp_rank, pp_rank, self._attach_wait_s)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        # vLLM carries the metadata of one connector only (multi_connector.py), and another one cannot do without. Our layout
        # comes with the rank's first report then.
        return None if self._layout is None or _others_need_the_handshake() else LayoutMetadata(self._layout)

    # Start, scheduler role.

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        if self._scheduler is not None:
            self._scheduler.bind_pool(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        layouts = [found.layout for found in metadata.values() if isinstance(found, LayoutMetadata)]
        if self._scheduler is not None and layouts:
            self._assembly.connect(self._scheduler, layouts, self._attach_wait_s)

    def _connect_late(self, layouts: tuple[RankLayout, ...]) -> None:
        """The layouts came with the ranks' reports: from now on there is a cache. Never waits."""
        assert self._scheduler is not None
        self._layouts += layouts
        if not self._scheduler.connected:
            try:
                self._assembly.connect(self._scheduler, self._layouts, 0.0)
            except StartRefused as refusal:
                self._log.warning("%s; this engine goes on without cache", refusal)

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
        if report is not None and report.layouts:
            self._connect_late(report.layouts)
        self._scheduler.reported(report, connector_output.finished_recving or ())

    @guarded(lambda: (False, None))
    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return False, self._scheduler.finished(request.request_id)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.busy()

    @guarded(dict)
    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[CacheHitSource, int]:
        assert self._scheduler is not None
        named: dict[CacheHitSource, int] = {}
        for source, tokens in self._scheduler.sources(request).items():
            name = HIT_SOURCES.get(source, CacheHitSource.EXTERNAL_UNSPECIFIED)
            named[name] = named.get(name, 0) + tokens
        # Strict decode claims what is not there, in order to be failed: that came from nowhere.
        return named or super().get_external_cache_hit_sources(request, num_external_tokens)

    @guarded(lambda: False)
    def reset_cache(self) -> bool | None:
        return self._scheduler is None or self._scheduler.reset()

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
        # A copy: vLLM's logger adds later steps to it, and others read the same dict.
        return PegaStats(dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        return PegaPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


def _others_need_the_handshake() -> bool:
    """Is this connector one of several (MultiConnector), and another one hands over metadata of its own at start?"""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    group = get_kv_transfer_group() if has_kv_transfer_group() else None
    return any(
        not isinstance(other, PegaKVConnector)
        and type(other).get_handshake_metadata is not KVConnectorBase_V1.get_handshake_metadata
        for other in getattr(group, "sub_connectors", ())
    )


def _register() -> None:
    """vLLM's MultiConnector looks a child's class up by its name when it reads statistics, whatever module path was given."""
    with suppress(ValueError):  # known already
        KVConnectorFactory.register_connector("PegaKVConnector", "pegaflow.connector", "PegaKVConnector")


def _arm_faults(log: logging.Logger) -> None:
    try:
        faults.arm(os.environ)
    except LocalError as error:
        raise StartRefused(error.code, error.text) from None
    if faults.armed():
        log.warning("faults_armed: %s is set: this process may stop, fail or die on purpose; for tests only", faults.VARIABLE)


_register()
