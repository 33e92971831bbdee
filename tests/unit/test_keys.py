"""The second implementation of the block hashes: golden vectors, tail, fingerprint."""

import pytest
from pegaflow.common import keys
from pegaflow.common.keys import HashAlgorithm

XX = HashAlgorithm.XXHASH_CBOR


def test_golden_vectors() -> None:
    none = keys.none_hash(XX, "0")
    assert none.hex() == "1ebe36576dcb573f26b99533a20aaeca"
    first = keys.block_hash(XX, none, [1, 2, 3, 4])
    assert first.hex() == "0a8577df5ee3430515a8cc1f6e3ac52e"
    second = keys.block_hash(XX, first, [5, 6, 7, 8])
    assert second.hex() == "d152782cb4d753bde718a811a3b75e23"
    tail = keys.block_hash(XX, second, [9, 10])
    assert tail.hex() == "7157acec76700e416a50d67e2334f6f6"


def test_prefix_and_tail_follow_the_chain() -> None:
    none = keys.none_hash(XX, "0")
    ids = list(range(1, 11))
    assert [h.hex() for h in keys.prefix_hashes(XX, none, ids, 4)] == [
        "0a8577df5ee3430515a8cc1f6e3ac52e",
        "d152782cb4d753bde718a811a3b75e23",
    ]
    tail = keys.tail_hash(XX, none, ids, 4)
    assert tail is not None
    assert tail.hex() == "7157acec76700e416a50d67e2334f6f6"


def test_a_tail_shorter_than_a_block_hangs_on_none_hash() -> None:
    none = keys.none_hash(XX, "0")
    assert keys.tail_hash(XX, none, [9, 10], 4) == keys.block_hash(XX, none, [9, 10])


@pytest.mark.parametrize("length", [0, 4, 8])
def test_an_aligned_prompt_has_no_tail(length: int) -> None:
    assert keys.tail_hash(XX, keys.none_hash(XX, "0"), list(range(length)), 4) is None


def test_sha256_has_a_fixed_seed_and_xxhash_has_none() -> None:
    fixed = keys.none_hash(HashAlgorithm.SHA256_CBOR)
    assert fixed == keys.none_hash(HashAlgorithm.SHA256_CBOR, "vllm-none-hash")
    assert fixed != keys.none_hash(HashAlgorithm.SHA256_CBOR, "0")
    with pytest.raises(keys.SeedMissing, match="PYTHONHASHSEED"):
        keys.none_hash(XX)


def test_ids_of_each_encoded_width_give_different_hashes() -> None:
    none = keys.none_hash(XX, "0")
    seen = {keys.block_hash(XX, none, [token]) for token in (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32)}
    assert len(seen) == 9


def test_a_key_is_fingerprint_and_hash() -> None:
    assert keys.key(b"f" * 16, b"h" * 32) == b"f" * 16 + b"h" * 32


def test_the_fingerprint_depends_on_values_and_borders_and_not_on_order() -> None:
    base = keys.fingerprint({"model": "a", "dtype": "float32"})
    assert len(base) == 16
    assert base == keys.fingerprint({"dtype": "float32", "model": "a"})
    assert base != keys.fingerprint({"model": "b", "dtype": "float32"})
    assert keys.fingerprint({"ab": "c"}) != keys.fingerprint({"a": "bc"})
    assert base != keys.fingerprint({"model": "a"})


def test_differing_factors_names_both_values() -> None:
    ours = {"model": "a", "dtype": "float32", "tp": "1"}
    theirs = {"model": "a", "dtype": "bfloat16", "pp": "1"}
    assert keys.differing_factors(ours, theirs) == {
        "dtype": ("float32", "bfloat16"),
        "pp": ("", "1"),
        "tp": ("1", ""),
    }
    assert keys.differing_factors(ours, ours) == {}
