"""Our block hashes against vLLM's own functions, for both algorithms that can be computed outside Python."""

import random

import pytest
from pegaflow.common import keys
from pegaflow.common.keys import HashAlgorithm

kv_cache_utils = pytest.importorskip("vllm.v1.core.kv_cache_utils")
hashing = pytest.importorskip("vllm.utils.hashing")


@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [
        (HashAlgorithm.SHA256_CBOR, None),
        *((algorithm, seed) for algorithm in HashAlgorithm for seed in ("0", "a longer seed, with ü")),
    ],
)
def test_chain_and_tail(algorithm: HashAlgorithm, seed: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    function = hashing.get_hash_fn_by_name(algorithm.value)
    none = function(kv_cache_utils.resolve_none_hash_seed(function))
    assert keys.none_hash(algorithm, seed) == none

    ids = random.Random(7).choices([0, 1, 23, 24, 255, 256, 65535, 65536, 151_000], k=77)
    parent = none
    for number, ours in enumerate(keys.prefix_hashes(algorithm, keys.none_hash(algorithm, seed), ids, 16)):
        parent = kv_cache_utils.hash_block_tokens(function, parent, ids[number * 16 : number * 16 + 16])
        assert ours == parent
    tail = kv_cache_utils.hash_block_tokens(function, parent, ids[64:])
    assert keys.tail_hash(algorithm, keys.none_hash(algorithm, seed), ids, 16) == tail


@pytest.mark.parametrize("algorithm", list(HashAlgorithm))
def test_extra_keys(algorithm: HashAlgorithm) -> None:
    function = hashing.get_hash_fn_by_name(algorithm.value)
    none = keys.none_hash(algorithm, "0")
    extra = (
        ("lora", "name", "/path/ü"),
        ("mm", "f" * 40, -3),
        ("cache_salt", "s"),
        ("prompt_embeds", b"\x00" * 32),
    )
    assert keys.block_hash(algorithm, none, [1, 2], extra) == function((none, (1, 2), extra))
