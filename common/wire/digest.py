"""The catalogue digest: a sum over its entries, so that it is kept up to date by adding and subtracting (protocol.md 5.4)."""

from __future__ import annotations

import xxhash

DIGEST_MOD = 1 << 128
DIGEST_BYTES = 16


def entry_digest(key: bytes, state: int, level: int, size: int) -> int:
    """One key's share: xxh3_128 over key, state, level and size in bytes. The digest is the sum of all shares mod 2^128."""
    return tail_digest(key, entry_tail(state, level, size))


def entry_tail(state: int, level: int, size: int) -> bytes:
    """What stands behind the key in `entry_digest`; the same for many keys."""
    return bytes((state, level)) + size.to_bytes(8, "little")


def tail_digest(key: bytes, tail: bytes) -> int:
    """`entry_digest` of a key whose tail is at hand."""
    return int(xxhash.xxh3_128_intdigest(key + tail))
