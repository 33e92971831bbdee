"""What must agree before two engines may share pages, as named factors.

Factors are compared by their digest (`common.keys.fingerprint`); the names are there so that a refusal can say which
of them differs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence

from pegaflow.connector.engine import Engine
from pegaflow.connector.options import StartRefused
from pegaflow.connector.weights import weights_digest

CONTRACT_VERSION = "1"
"""Raised when the meaning of a key or of a page's bytes changes."""

RANDOM_SEED_ALGORITHMS = frozenset({"xxhash", "xxhash_cbor"})


def none_hash_value(algorithm: str, environ: Mapping[str, str] | None = None) -> bytes:
    """NONE_HASH as vLLM will compute it, in whatever process this runs.

    vLLM assigns it in the engine core only, and after the connectors are built. Raises StartRefused where vLLM would
    draw a random seed (`resolve_none_hash_seed`).
    """
    if algorithm in RANDOM_SEED_ALGORITHMS and "PYTHONHASHSEED" not in (os.environ if environ is None else environ):
        raise StartRefused(
            "hash_seed",
            f"with prefix_caching_hash_algo={algorithm} vLLM draws a random hash seed per process, so no other engine "
            "could find these pages: set the environment variable PYTHONHASHSEED to the same value everywhere, or use "
            "sha256_cbor",
        )
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import resolve_none_hash_seed

    function = get_hash_fn_by_name(algorithm)
    return function(resolve_none_hash_seed(function))


def base_factors(engine: Engine, none_hash: bytes) -> dict[str, str]:
    """All factors but the page layouts, which each rank knows for itself."""
    algorithm = engine.hash_algorithm
    if not algorithm.endswith("_cbor"):
        # These hash a pickle, whose bytes depend on its protocol.
        algorithm += f"/pickle{pickle.HIGHEST_PROTOCOL}"
    try:
        model = engine.model if engine.model_path is None else weights_digest(engine.model_path)
    except OSError as error:
        raise StartRefused("model_unreadable", f"the model's files cannot be read for the fingerprint: {error}") from error
    return {
        "contract": CONTRACT_VERSION,
        "model": model,
        "revision": engine.revision if engine.model_path is None else "",
        "dtype": engine.dtype,
        "kv_dtype": engine.cache_dtype,
        "quantization": engine.quantization,
        "hf_overrides": engine.hf_overrides,
        "block_size": str(engine.block_size),
        "hash_block_size": str(engine.hash_block_size),
        "hash_algorithm": algorithm,
        "none_hash": none_hash.hex(),
        "shards": str(engine.shards),
        "tp": str(engine.tp),
        "pp": str(engine.pp),
        "dcp": str(engine.dcp),
        "mla": str(engine.mla).lower(),
    }


def with_layouts(factors: Mapping[str, str], layouts: Sequence[bytes]) -> dict[str, str]:
    """The full factors of an engine: its shards' page layouts included, by shard."""
    return {**factors, **{f"layout_{shard}": layout.hex() for shard, layout in enumerate(layouts)}}
