"""The catalogue digest: a sum over its entries, so that it is kept up to date by adding and subtracting (protocol.md 5.4)."""

from __future__ import annotations

from collections.abc import Iterable
from operator import add

import xxhash

DIGEST_MOD = 1 << 128
DIGEST_BYTES = 16


def entry_digest(key: bytes, state: int, level: int, size: int) -> int:
    """One key's share: xxh3_128 over key, state, level and size in bytes. The digest is the sum of all shares mod 2^128."""
    return tail_digests((key,), (entry_tail(state, level, size),))


def entry_tail(state: int, level: int, size: int) -> bytes:
    """What stands behind the key in `entry_digest`; the same for many keys."""
    return bytes((state, level)) + size.to_bytes(8, "little")


def tail_digests(keys: Iterable[bytes], tails: Iterable[bytes]) -> int:
    """The sum of the `entry_digest` of each key with its tail, not reduced. PERF: without a step of Python per key."""
    return sum(map(xxhash.xxh3_128_intdigest, map(add, keys, tails)))
