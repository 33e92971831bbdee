"""The catalogue digest: a sum over its entries, so that it is kept up to date by adding and subtracting (protocol.md 5.4)."""

from __future__ import annotations

import xxhash

DIGEST_MOD = 1 << 128
DIGEST_BYTES = 16


def entry_digest(key: bytes, state: int, level: int, size: int) -> int:
    """One key's share: xxh3_128 over key, state, level and size in bytes. The digest is the sum of all shares mod 2^128."""
    return int(xxhash.xxh3_128_intdigest(key + bytes((state, level)) + size.to_bytes(8, "little")))
