"""What the connector needs to know about the vLLM engine that it lives in, read once at start.

Plain values, so that everything decided from them can be tested without vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pegaflow.connector.session import Member

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec


@dataclass(frozen=True, slots=True)
class CacheLayer:
    """How vLLM keeps the KV of one layer: the kind of its spec, the window if it has one; `compressed`: not a row a token."""

    name: str
    kind: str
    window: int | None
    replay: int
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. Sizes in tokens; `groups`: the layers of each cache group."""

    engine_id: str
    role: str
    load_failure_policy: str
    block_size: int
    hash_block_size: int
    num_blocks: int
    groups: tuple[tuple[CacheLayer, ...], ...]
    tp: int
    pp: int
    dcp: int
    pcp: int
    mla: bool
    speculation: str | None
    scheduling_policy: str
    hash_algorithm: str
    dynamic_kv_scales: bool
    model: str
    model_path: Path | None
    revision: str
    dtype: str
    cache_dtype: str
    quantization: str
    hf_overrides: str

    @property
    def ranks(self) -> int:
        """Worker processes of this engine: each reports the end of each save and load."""
        return self.tp * self.pp

    @property
    def shards(self) -> int:
        """Pages per key. With MLA every TP rank has the same bytes, so one copy per stage is kept."""
        return self.pp if self.mla else self.tp * self.pp

    @property
    def stripes(self) -> int:
        """How many ranks share the writing of one shard."""
        return self.tp if self.mla else 1

    def shard(self, tp_rank: int, pp_rank: int) -> int:
        return pp_rank if self.mla else pp_rank * self.tp + tp_rank

    def stripe(self, tp_rank: int) -> int:
        return tp_rank if self.mla else 0

    def rank_member(self, tp_rank: int, pp_rank: int) -> Member:
        """One worker process, as the tier knows it."""
        rank = pp_rank * self.tp + tp_rank
        return Member(self.engine_id, "rank", rank, self.shard(tp_rank, pp_rank), self.shards, self.stripe(tp_rank), self.stripes)

    def scheduler_member(self) -> Member:
        """The engine core."""
        return Member(self.engine_id, "scheduler", 0, 0, self.shards, 0, self.stripes)


def describe_engine(config: VllmConfig, cache: KVCacheConfig) -> Engine:
    """Reads vLLM's configuration. `cache` is the one that vLLM hands to the connector."""
    transfer = config.kv_transfer_config
    assert transfer is not None
    model, parallel = config.model_config, config.parallel_config
    speculative = config.speculative_config
    groups = tuple(tuple(_layer(name, group.kv_cache_spec) for name in group.layer_names) for group in cache.kv_cache_groups)
    block_size = cache.kv_cache_groups[0].kv_cache_spec.block_size if groups else config.cache_config.block_size
    path = Path(model.model)
    return Engine(
        engine_id=str(transfer.engine_id),
        role=str(transfer.kv_role),
        load_failure_policy=transfer.kv_load_failure_policy,
        block_size=block_size,
        hash_block_size=cache.hash_block_size or block_size,
        num_blocks=cache.num_blocks,
        groups=groups,
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        dcp=parallel.decode_context_parallel_size,
        pcp=parallel.prefill_context_parallel_size,
        mla=bool(model.use_mla),
        speculation=None if speculative is None else str(speculative.method),
        scheduling_policy=str(config.scheduler_config.policy),
        hash_algorithm=config.cache_config.prefix_caching_hash_algo,
        dynamic_kv_scales=bool(getattr(config.cache_config, "calculate_kv_scales", False)),
        model=model.model,
        model_path=path if path.is_dir() else None,
        revision=str(model.revision or ""),
        dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=config.cache_config.cache_dtype,
        quantization=str(model.quantization or ""),
        hf_overrides=repr(model.hf_overrides) if model.hf_overrides else "",
    )


def _layer(name: str, spec: KVCacheSpec) -> CacheLayer:
    # Layers of different sizes in one group come wrapped, one spec per layer.
    own = getattr(spec, "kv_cache_specs", {}).get(name, spec)
    window = getattr(own, "sliding_window", None) or getattr(own, "attention_chunk_size", None)
    compressed = getattr(own, "tokens_per_state", 1) != 1
    return CacheLayer(name, type(own).__name__, window, int(getattr(own, "prefix_replay_tokens", 0)), compressed)
