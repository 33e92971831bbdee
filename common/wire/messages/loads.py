"""Loading: lookup and its hits, and what becomes of the lease (scheduler half ↔ tier)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pegaflow.common.wire.codec import U32, U64, Bool, Bytes, Int, Keys, Signed, Str, message

LOCAL, REMOTE, DISK = range(3)
MAX_WAIT_MS = 3_600_000


@message
@dataclass(frozen=True, slots=True)
class Lookup:
    """Which prefix of `keys` can be had? `tails` are alternatives for the page after the last full one, best first.

    Pending keys are awaited up to `wait_ms`; unknown ones only when `expected`.
    """

    KIND: ClassVar[str] = "lookup"
    session: Int
    token: Bytes
    lookup: Int
    request: Str
    keys: Keys
    tails: Keys
    wait_ms: Int
    expected: Bool

    def check(self) -> str | None:
        if self.keys and self.tails and len(self.keys[0]) != len(self.tails[0]):
            return "keys and tails of different widths"
        return None if self.wait_ms <= MAX_WAIT_MS else f"wait_ms {self.wait_ms}, at most {MAX_WAIT_MS}"


@message
@dataclass(frozen=True, slots=True)
class Hits:
    """`full` keys of the prefix and, if ≥ 0, the tail with that index. Columns: `shards` values per hit, the tail last.

    `lease` 0: no hit, nothing held. `reason` says why the prefix ends where it does (empty: everything was found).
    """

    KIND: ClassVar[str] = "hits"
    lookup: Int
    lease: Int
    full: Int
    tail: Signed
    shards: Int
    slots: U32
    generations: U64
    sources: Bytes
    reason: Str

    def check(self) -> str | None:
        hits = self.full + (self.tail >= 0)
        if len(self.slots) != hits * self.shards or len(self.generations) != len(self.slots) or len(self.sources) != hits:
            return "columns of different lengths"
        return None


@message
@dataclass(frozen=True, slots=True)
class Loading:
    """Ranks are about to copy from these leases: they last until released."""

    KIND: ClassVar[str] = "loading"
    session: Int
    token: Bytes
    leases: U64


@message
@dataclass(frozen=True, slots=True)
class Release:
    """These leases are over; every rank has reported its copy ended. Unknown leases are ignored."""

    KIND: ClassVar[str] = "release"
    session: Int
    token: Bytes
    leases: U64


@message
@dataclass(frozen=True, slots=True)
class Cancel:
    """These lookups are not wanted any more; an answer under way is released by the asker."""

    KIND: ClassVar[str] = "cancel"
    session: Int
    token: Bytes
    lookups: U64


@message
@dataclass(frozen=True, slots=True)
class Done:
    """A plain yes."""

    KIND: ClassVar[str] = "done"
