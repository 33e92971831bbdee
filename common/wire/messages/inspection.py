"""Inspection: where a page is, what became of it, who holds what (inspection tool → tier, metaserver; request/reply).

To look changes nothing: no lease, no use, no wait. Every answer is bounded; what was cut off is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import ClassVar

from pegaflow.common.wire.codec import U32, U64, Bool, Bytes, Int, Keys, Str, Strs, message

MAX_KEYS = 4096
MAX_FOUND = 64
MAX_ROWS = 4096
MAX_STEPS = 1024
NEVER = (1 << 64) - 1
"""In a column of times: it was never, or has no end."""
CHECKSUM_BYTES = 16


class PageIs(IntEnum):
    """What a tier says of a key; the first four as in `probed`."""

    UNKNOWN = 0
    PENDING = 1
    SEALED = 2
    FETCHING = 3
    STALE = 4  # promised by a session that is silent
    LEAVING = 5  # out of the index; somebody still touches its slots


class PageFlag(IntFlag):
    """More of a page. VERIFIED: its checksum was found to fit in this life of the tier, or taken in it."""

    MEMORY = 1
    DISK = 2
    VERIFIED = 4
    REPLICA = 8
    KEPT = 16


class Step(IntEnum):
    """What happened to a page. `who` of a step says for whom, from whom, or why."""

    GRANTED = 0
    NO_SPACE = 1
    REFUSED = 2
    ABANDONED = 3
    STALE = 4
    SEALED = 5
    DUPLICATE = 6
    EVICTED = 7
    DISK_WRITTEN = 8
    DISK_EVICTED = 9
    DISK_READ = 10
    DISK_LOST = 11
    FETCHED = 12
    FETCH_FAILED = 13
    ADOPTED = 14
    DISK_FOUND = 15
    BAD_CHECKSUM = 16
    HASH_FAILED = 17


def _even(*columns: object) -> str | None:
    lengths = {len(column) for column in columns}  # type: ignore[arg-type]
    return None if len(lengths) <= 1 else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class Inspect:
    """What do you know of these keys? At most MAX_KEYS."""

    KIND: ClassVar[str] = "inspect"
    keys: Keys

    def check(self) -> str | None:
        return None if len(self.keys) <= MAX_KEYS else f"{len(self.keys)} keys, at most {MAX_KEYS}"


@message
@dataclass(frozen=True, slots=True)
class Inspected:
    """Columns per key. `states` are `PageIs`, `flags` `PageFlag`; sizes in bytes over all shards.

    `holds`: references; `leases`, `pins`: those among them that engines and other tiers hold. `used_ms`, `kept_ms`: since its
    last use, and until it may go again (NEVER: never, or not kept). `sums`: how many checksums of 16 bytes this key has in
    `checksums`. `engines`, `requests`: who saved it or offered it last (empty: nobody here).
    """

    KIND: ClassVar[str] = "inspected"
    states: Bytes
    flags: Bytes
    sizes: U64
    shards: U32
    holds: U32
    leases: U32
    pins: U32
    used_ms: U64
    kept_ms: U64
    sums: U32
    checksums: Bytes
    engines: Strs
    requests: Strs

    def check(self) -> str | None:
        if len(self.checksums) != CHECKSUM_BYTES * sum(self.sums):
            return "columns of different lengths"
        return _even(
            self.states, self.flags, self.sizes, self.shards, self.holds, self.leases, self.pins, self.used_ms, self.kept_ms,
            self.sums, self.engines, self.requests,
        )  # fmt: skip


@message
@dataclass(frozen=True, slots=True)
class Find:
    """Which keys, in memory or on disk, begin with these bytes, or have a content hash that does?"""

    KIND: ClassVar[str] = "find"
    prefix: Bytes


@message
@dataclass(frozen=True, slots=True)
class Found:
    """Whole keys in hexadecimal, at most MAX_FOUND; `more`: there are others."""

    KIND: ClassVar[str] = "found"
    keys: Strs
    more: Bool


@message
@dataclass(frozen=True, slots=True)
class Story:
    """What became of this page?"""

    KIND: ClassVar[str] = "story"
    key: Bytes


@message
@dataclass(frozen=True, slots=True)
class Told:
    """Columns per step, the oldest first, the last MAX_STEPS: how long ago, what (`Step`), and for whom or why.

    `reaches_ms`: how far back the tier remembers; what was before that is not in it.
    """

    KIND: ClassVar[str] = "told"
    ages_ms: U64
    steps: Bytes
    whos: Strs
    reaches_ms: Int

    def check(self) -> str | None:
        return _even(self.ages_ms, self.steps, self.whos)


@message
@dataclass(frozen=True, slots=True)
class Recall:
    """The last lookups whose request id is, or begins with, this text; empty: the last ones of anybody."""

    KIND: ClassVar[str] = "recall"
    request: Str


@message
@dataclass(frozen=True, slots=True)
class Recalled:
    """Columns per lookup, the latest first, at most MAX_ROWS.

    `asked` full keys, of which `hits` were found; `tails` were asked for too, `tail_hits` (0 or 1) of them found. `reasons`:
    why the prefix ended where it did (empty: all was found; `waiting`: no answer yet). `missing`: the first key that was not
    there, in hexadecimal. `waited_ms`: until the answer. `fetched`, `read`: hits that came from other tiers and from disk.
    """

    KIND: ClassVar[str] = "recalled"
    requests: Strs
    engines: Strs
    fingerprints: Strs
    ages_ms: U64
    waited_ms: U64
    asked: U32
    hits: U32
    tails: U32
    tail_hits: U32
    fetched: U32
    read: U32
    reasons: Strs
    missing: Strs
    reaches_ms: Int

    def check(self) -> str | None:
        return _even(
            self.requests, self.engines, self.fingerprints, self.ages_ms, self.waited_ms, self.asked, self.hits, self.tails,
            self.tail_hits, self.fetched, self.read, self.reasons, self.missing,
        )  # fmt: skip


@message
@dataclass(frozen=True, slots=True)
class Leases:
    """Who holds pages still?"""

    KIND: ClassVar[str] = "leases"


@message
@dataclass(frozen=True, slots=True)
class LeaseList:
    """Columns per lease, the oldest first, at most MAX_ROWS of `total`. `engines` empty: a pin of the tier `readers`.

    `left_ms`: until it ends by itself (NEVER: loading, it ends with its release).
    """

    KIND: ClassVar[str] = "lease_list"
    leases: U64
    engines: Strs
    readers: Strs
    requests: Strs
    pages: U32
    bytes: U64
    ages_ms: U64
    left_ms: U64
    total: Int

    def check(self) -> str | None:
        return _even(self.leases, self.engines, self.readers, self.requests, self.pages, self.bytes, self.ages_ms, self.left_ms)


@message
@dataclass(frozen=True, slots=True)
class Grants:
    """Which grants are open: slots that somebody may still write?"""

    KIND: ClassVar[str] = "grants"


@message
@dataclass(frozen=True, slots=True)
class GrantList:
    """Columns per grant, the oldest first, at most MAX_ROWS of `total`. `pages` are not written yet.

    `holders` name the processes that may write; `silent_ms`: since the quietest of them showed life.
    """

    KIND: ClassVar[str] = "grant_list"
    grants: U64
    intents: U64
    engines: Strs
    requests: Strs
    holders: Strs
    pages: U32
    bytes: U64
    ages_ms: U64
    silent_ms: U64
    total: Int

    def check(self) -> str | None:
        return _even(
            self.grants, self.intents, self.engines, self.requests, self.holders, self.pages, self.bytes, self.ages_ms,
            self.silent_ms,
        )  # fmt: skip


@message
@dataclass(frozen=True, slots=True)
class Namespaces:
    """Which fingerprints are known, those of engines that have left included, and what is in them?"""

    KIND: ClassVar[str] = "namespaces"


@message
@dataclass(frozen=True, slots=True)
class NamespaceList:
    """Columns per fingerprint. `engines`: those attached now, comma-separated; `factors`: `name=value` lines, empty if unknown.

    `sealed`: pages in memory, `used_bytes` their share of the pool, `disk` pages on disk.
    """

    KIND: ClassVar[str] = "namespace_list"
    fingerprints: Strs
    engines: Strs
    factors: Strs
    pages: U64
    used_bytes: U64
    disk: U64

    def check(self) -> str | None:
        return _even(self.fingerprints, self.engines, self.factors, self.pages, self.used_bytes, self.disk)


@message
@dataclass(frozen=True, slots=True)
class Digest:
    """Your catalogues, in short? A tier answers with its own, a metaserver with its copy of each node's."""

    KIND: ClassVar[str] = "digest"


@message
@dataclass(frozen=True, slots=True)
class Digests:
    """Columns per node: the head that was taken in, 16 bytes of digest at that head, counts; `syncing`: a snapshot is on its way.

    Digests are comparable at equal epoch and seq only. `digests` of a node may be all zero: nothing is known of it yet.
    """

    KIND: ClassVar[str] = "digests"
    nodes: Strs
    epochs: U64
    seqs: U64
    digests: Bytes
    sealed: U64
    pending: U64
    syncing: Bytes

    def check(self) -> str | None:
        if len(self.digests) != CHECKSUM_BYTES * len(self.nodes):
            return "columns of different lengths"
        return _even(self.nodes, self.epochs, self.seqs, self.sealed, self.pending, self.syncing)


@message
@dataclass(frozen=True, slots=True)
class Believe:
    """What do you believe that this node has of these keys? (to a metaserver) At most MAX_KEYS."""

    KIND: ClassVar[str] = "believe"
    node: Str
    keys: Keys

    def check(self) -> str | None:
        return None if len(self.keys) <= MAX_KEYS else f"{len(self.keys)} keys, at most {MAX_KEYS}"


@message
@dataclass(frozen=True, slots=True)
class Believed:
    """As in a delta, per key; true at `seq` of the node's life `epoch`."""

    KIND: ClassVar[str] = "believed"
    epoch: Int
    seq: Int
    states: Bytes
    levels: Bytes
    sizes: U32

    def check(self) -> str | None:
        return _even(self.states, self.levels, self.sizes)


@message
@dataclass(frozen=True, slots=True)
class Resync:
    """Take a new snapshot of this node's catalogue (to a metaserver). Answered by done when it is wanted, not when it is in."""

    KIND: ClassVar[str] = "resync"
    node: Str
