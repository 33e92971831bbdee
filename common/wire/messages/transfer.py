"""Between tiers: pin pages for a READ, let them go, and take over those of a tier that leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pegaflow.common.wire.codec import U32, U64, Bytes, Int, Keys, Str, message
from pegaflow.common.wire.messages.attach import MAX_SHARDS

CHECKSUM_BYTES = 16
FINGERPRINT_BYTES = 16
MAX_PAGE_KEY_BYTES = 64
"""What the slot table has room for."""


@message
@dataclass(frozen=True, slots=True)
class Pin:
    """Keep these pages still for `ttl_ms`; the reader counts the time from before it sent this."""

    KIND: ClassVar[str] = "pin"
    reader: Str
    keys: Keys
    shards: Int
    ttl_ms: Int


@message
@dataclass(frozen=True, slots=True)
class Pinned:
    """What is there: `positions` index into the asked keys; the other columns hold `shards` values per position, key-major.

    `offsets` are bytes from the pool's start; `base` is the pool's address in the process that owns the NIXL agent; `metadata`
    is that agent's opaque blob.
    """

    KIND: ClassVar[str] = "pinned"
    lease: Int
    positions: U32
    rows: U32
    offsets: U64
    lengths: U32
    checksums: Bytes
    agent: Str
    metadata: Bytes
    base: Int
    pool_bytes: Int

    def check(self) -> str | None:
        pages = len(self.offsets)
        if len(self.lengths) != pages or len(self.checksums) != CHECKSUM_BYTES * pages or len(self.rows) != len(self.positions):
            return "columns of different lengths"
        if self.positions and pages % len(self.positions):
            return "pages are no multiple of the keys"
        return None


@message
@dataclass(frozen=True, slots=True)
class Unpin:
    """The READ has ended (or was never posted)."""

    KIND: ClassVar[str] = "unpin"
    lease: Int


@message
@dataclass(frozen=True, slots=True)
class Take:
    """A tier that leaves asks another one to fetch these pages from it; `lengths` are each page's, one per shard."""

    KIND: ClassVar[str] = "take"
    node: Str
    epoch: Int
    requests: Str
    keys: Keys
    lengths: U32

    def check(self) -> str | None:
        if not self.node or not self.epoch or not self.requests:
            return "a tier has a name, an epoch and an endpoint"
        if not self.keys or not all(length > 0 for length in self.lengths) or not self.lengths:
            return "pages have keys and lengths above 0"
        if len(self.lengths) > MAX_SHARDS:
            return f"{len(self.lengths)} shards, at most {MAX_SHARDS}"
        if not FINGERPRINT_BYTES < len(self.keys[0]) <= MAX_PAGE_KEY_BYTES:
            return f"a page's key has {FINGERPRINT_BYTES + 1} to {MAX_PAGE_KEY_BYTES} bytes"
        return None


@message
@dataclass(frozen=True, slots=True)
class Taken:
    """The first `count` of the keys are there or being fetched; for the others there is no free memory."""

    KIND: ClassVar[str] = "taken"
    count: Int
