"""Keys: what a page is called, the same in every process that never saw the other one.

A key is `fingerprint (16 bytes) + content hash (16 or 32 bytes)`. The content hash is vLLM's own block hash,
or, for the rows after the last full block of a prompt, the tail hash: the same function over the same kind of
input.

This module is the second implementation of that hashing (the first is vLLM, `v1/core/kv_cache_utils.py` and
`utils/hashing.py`). It needs neither vLLM nor a CBOR library, so the inspection tool and tests can derive a key
from ids alone. It covers the two algorithms whose input is CBOR; the pickled ones cannot be reproduced outside
Python.

The chain of a prompt of 10 ids at block size 4:

    NONE_HASH ─▶ H([0..3]) ─▶ H([4..7]) ─▶ tail H([8, 9])
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NewType

import xxhash

Key = NewType("Key", bytes)
"""`fingerprint + content hash`."""

BlockHash = NewType("BlockHash", bytes)
"""Content hash of one block and of everything before it: 16 bytes (xxh3_128) or 32 (sha256)."""

FINGERPRINT_BYTES = 16

DEFAULT_SEED = "vllm-none-hash"
"""Seed of NONE_HASH for cryptographic algorithms when PYTHONHASHSEED is not set (vLLM 0.32 and later)."""

Extra = int | str | bytes | None | tuple["Extra", ...]
"""What vLLM puts beside the ids of a block: LoRA, salt, images, embeddings."""


class HashAlgorithm(StrEnum):
    """Algorithms that can be computed here, under vLLM's names (`--prefix-caching-hash-algo`)."""

    SHA256_CBOR = "sha256_cbor"
    XXHASH_CBOR = "xxhash_cbor"


class SeedMissing(ValueError):
    """The algorithm's seed is random per process unless PYTHONHASHSEED is set: its hashes cannot be shared."""

    code = "hash_seed_missing"


def _head(major: int, value: int) -> bytes:
    """First bytes of a CBOR item (RFC 8949, 3.1) in the shortest form, which is the canonical one."""
    if value < 24:
        return bytes((major << 5 | value,))
    if value < 0x100:
        return bytes((major << 5 | 24, value))
    if value < 0x1_0000:
        return struct.pack(">BH", major << 5 | 25, value)
    if value < 0x1_0000_0000:
        return struct.pack(">BI", major << 5 | 26, value)
    return struct.pack(">BQ", major << 5 | 27, value)


def _cbor(item: Extra) -> bytes:
    if item is None:
        return b"\xf6"
    if isinstance(item, bool):
        raise TypeError("vLLM puts no booleans into a block hash")
    if isinstance(item, int):
        return _head(0, item) if item >= 0 else _head(1, -1 - item)
    if isinstance(item, bytes):
        return _head(2, len(item)) + item
    if isinstance(item, str):
        text = item.encode()
        return _head(3, len(text)) + text
    return _head(4, len(item)) + b"".join(map(_cbor, item))


def _digest(algorithm: HashAlgorithm, data: bytes) -> BlockHash:
    if algorithm is HashAlgorithm.SHA256_CBOR:
        return BlockHash(hashlib.sha256(data).digest())
    return BlockHash(xxhash.xxh3_128_digest(data))


def none_hash(algorithm: HashAlgorithm, seed: str | None = None) -> BlockHash:
    """Parent of a first block.

    `seed` is the value of PYTHONHASHSEED, None where it is not set. Raises SeedMissing when vLLM would draw a
    random seed (`resolve_none_hash_seed`): no other process could compute the same hashes.
    """
    if seed is None:
        if algorithm is HashAlgorithm.XXHASH_CBOR:
            raise SeedMissing(f"{algorithm} has a random NONE_HASH per process: set PYTHONHASHSEED")
        seed = DEFAULT_SEED
    return _digest(algorithm, _cbor(seed))


def block_hash(
    algorithm: HashAlgorithm,
    parent: BlockHash,
    token_ids: Sequence[int],
    extra: tuple[Extra, ...] | None = None,
) -> BlockHash:
    """Hash of one block: of `(parent, ids, extra)`. The ids may be fewer than a block's (the tail)."""
    parts = [b"\x83", _head(2, len(parent)), parent, _head(4, len(token_ids))]
    parts.extend(_head(0, token) for token in token_ids)
    parts.append(_cbor(extra))
    return _digest(algorithm, b"".join(parts))


def prefix_hashes(algorithm: HashAlgorithm, none: BlockHash, token_ids: Sequence[int], block_size: int) -> list[BlockHash]:
    """Hashes of the full blocks of `token_ids`, in order."""
    hashes: list[BlockHash] = []
    parent = none
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = block_hash(algorithm, parent, token_ids[start : start + block_size])
        hashes.append(parent)
    return hashes


def tail_hash(algorithm: HashAlgorithm, none: BlockHash, prompt_ids: Sequence[int], block_size: int) -> BlockHash | None:
    """Hash of the rows after the last full block of a prompt; None where the prompt ends at a block's end."""
    full = len(prompt_ids) // block_size
    rest = prompt_ids[full * block_size :]
    if not rest:
        return None
    hashes = prefix_hashes(algorithm, none, prompt_ids, block_size)
    return block_hash(algorithm, hashes[-1] if hashes else none, rest)


def key(fingerprint: bytes, content: bytes) -> Key:
    """The key of a page."""
    return Key(fingerprint + content)


def fingerprint(factors: Mapping[str, str]) -> bytes:
    """16 bytes over all that must agree before bytes may be shared, whatever the order of the factors."""
    digest = hashlib.blake2b(digest_size=FINGERPRINT_BYTES, person=b"pegaflow-factors")
    for name in sorted(factors):
        for text in (name.encode(), factors[name].encode()):
            # Lengths keep ("ab", "c") apart from ("a", "bc").
            digest.update(struct.pack(">I", len(text)) + text)
    return digest.digest()


def differing_factors(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Why two fingerprints differ: factor → (our value, their value), an empty text where a side lacks it."""
    return {
        name: (ours.get(name, ""), theirs.get(name, ""))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    }
