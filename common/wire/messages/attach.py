"""Attach: an engine's process joins a tier (connector → tier, request/reply), and the engine's sign of life."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pegaflow.common.wire.codec import U32, U64, Bool, Bytes, Int, Str, Strs, message
from pegaflow.common.wire.columns import u32s, u64s

LAYOUT_BYTES = 16
MAX_SHARDS = 1024
_HEXADECIMAL = frozenset("0123456789abcdef")


@message
@dataclass(frozen=True, slots=True)
class Attach:
    """One process of an engine asks to join. Idempotent by `nonce`.

    `role` is `scheduler` or `rank`. The scheduler half says the session's full `fingerprint`, `layouts` (16 bytes per shard) and
    `page_bytes` (per shard); a rank says its own layout and page size, an empty fingerprint, and `base`, the part of the
    fingerprint that every process of the engine knows. `factors` are `name=value` texts, for the error text of a mismatch only.
    """

    KIND: ClassVar[str] = "attach"
    protocol: Int
    package: Str
    engine: Str
    role: Str
    rank: Int
    shard: Int
    shards: Int
    stripe: Int
    stripes: Int
    base: Bytes
    fingerprint: Bytes
    factors: Strs
    layouts: Bytes
    page_bytes: U32
    mode: Str
    pid: Int
    lock_name: Str
    nonce: Bytes
    first_seq: Int  # the number this process gives to its next publication
    gpu: Bool = False  # a device copies into the pool: only the end of the process proves that it has stopped
    versions: Strs = field(default_factory=list)  # `name=value` texts, for people: vllm, python, pyzmq, …

    def check(self) -> str | None:
        if self.role not in ("scheduler", "rank"):
            return f"role {self.role[:32]!r}, expected scheduler or rank"
        if not 0 < self.shards <= MAX_SHARDS or self.shard >= self.shards:
            return f"shard {self.shard} of {self.shards}"
        if not 0 < self.stripes <= MAX_SHARDS or self.stripe >= self.stripes:
            return f"stripe {self.stripe} of {self.stripes}"
        count = self.shards if self.role == "scheduler" else 1
        if len(self.layouts) != LAYOUT_BYTES * count or len(self.page_bytes) != count:
            return f"{len(self.layouts)} layout bytes and {len(self.page_bytes)} page sizes for {count} shards"
        if len(self.base) != 16 or len(self.fingerprint) not in (0, 16):
            return "a fingerprint has 16 bytes"
        if len(self.nonce) != 16:
            return "a nonce has 16 bytes"
        return None


@message
@dataclass(frozen=True, slots=True)
class Attached:
    """The tier's yes. `token` goes into every later message; `topic` is the session's own on `events`."""

    KIND: ClassVar[str] = "attached"
    node: Str
    session: Int
    member: Int
    token: Bytes
    first_seq: Int  # the number the tier expects next from this process
    topic: Bytes
    pool_path: Str
    pool_bytes: Int
    table_path: Str
    granule: Int
    intents: Str
    events: Str
    control: Str


@message
@dataclass(frozen=True, slots=True)
class Detach:
    """The process has unmapped (or never mapped) the pool and is about to drop its lock: a courtesy, the lock is the proof."""

    KIND: ClassVar[str] = "detach"
    session: Int
    member: Int
    token: Bytes


@message
@dataclass(frozen=True, slots=True)
class Sessions:
    """Which engines are attached, and how do they name pages? (router → tier)"""

    KIND: ClassVar[str] = "sessions"


@message
@dataclass(frozen=True, slots=True)
class SessionList:
    """Columns per engine: 16 bytes of fingerprint, tokens per page and per hash, hash algorithm, NONE_HASH in hexadecimal."""

    KIND: ClassVar[str] = "session_list"
    engines: Strs
    fingerprints: Bytes
    block_sizes: U32
    hash_block_sizes: U32
    algorithms: Strs
    none_hashes: Strs

    def check(self) -> str | None:
        count = len(self.engines)
        columns = (self.block_sizes, self.hash_block_sizes, self.algorithms, self.none_hashes)
        if len(self.fingerprints) != 16 * count or any(len(column) != count for column in columns):
            return "columns of different lengths"
        if any(len(text) % 2 or not set(text) <= _HEXADECIMAL for text in self.none_hashes):
            return "a NONE_HASH is not hexadecimal"
        return None


@message
@dataclass(frozen=True, slots=True)
class Alive:
    """Every engine process each 500 ms; not numbered. What it does not list, it does not hold (docs/protocol.md 4.4)."""

    KIND: ClassVar[str] = "alive"
    epoch: Int
    events_seen: Int
    closed_through: Int
    grants: U64 = field(default_factory=u64s)
    leases: U64 = field(default_factory=u64s)
    lookups: U64 = field(default_factory=u64s)
    lookups_through: Int = 0  # the highest lookup number sent so far: nothing is said about later ones


@message
@dataclass(frozen=True, slots=True)
class SessionBeat:
    """Tier → session each 500 ms; the header's seq is the head of the session's events. Columns: member, next expected seq."""

    KIND: ClassVar[str] = "session_beat"
    members: U32 = field(default_factory=u32s)
    nexts: U64 = field(default_factory=u64s)

    def check(self) -> str | None:
        return None if len(self.members) == len(self.nexts) else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class Welcome:
    """To each new subscriber of a topic; the header's seq is the head."""

    KIND: ClassVar[str] = "welcome"


@message
@dataclass(frozen=True, slots=True)
class Ack:
    """Cumulative: every publication of this member below `next` was applied."""

    KIND: ClassVar[str] = "ack"
    member: Int
    next: Int
