"""The plainest engine there is, for tests that need one: a single rank and layer, nothing that a connector refuses."""

from __future__ import annotations

from typing import Any

from pegaflow.connector.engine import CacheLayer, Engine

LAYER = CacheLayer("layer", "FullAttentionSpec", None, 0)


def plain_engine(block_size: int = 16, num_blocks: int = 100, **others: Any) -> Engine:
    """With blocks of so many tokens, so many of them, and `others` in place of what a plain engine has."""
    plain: dict[str, Any] = {
        "engine_id": "e",
        "role": "kv_both",
        "load_failure_policy": "recompute",
        "block_size": block_size,
        "hash_block_size": block_size,
        "num_blocks": num_blocks,
        "groups": ((LAYER,),),
        "tp": 1,
        "pp": 1,
        "dcp": 1,
        "pcp": 1,
        "mla": False,
        "speculation": None,
        "scheduling_policy": "fcfs",
        "hash_algorithm": "xxhash_cbor",
        "dynamic_kv_scales": False,
        "model": "m",
        "model_path": None,
        "revision": "",
        "dtype": "float32",
        "cache_dtype": "auto",
        "quantization": "",
        "hf_overrides": "",
    }
    return Engine(**plain | others)
