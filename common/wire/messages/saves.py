"""Saving: intent (engine → tier), grant (tier → engine), written / abandoned (rank → tier)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import xxhash
from pegaflow.common.wire.codec import U32, U64, Bytes, Int, Keys, Strs, message

GRANTED, HAVE, PENDING, NO_SPACE, REFUSED = range(5)
KEY_MARK_BYTES = 8
_FINGERPRINT_BYTES = 16


def key_mark(key: bytes) -> bytes:
    """Eight bytes of a key's content hash: they say that both ends mean the same page."""
    return key[_FINGERPRINT_BYTES : _FINGERPRINT_BYTES + KEY_MARK_BYTES].ljust(KEY_MARK_BYTES, b"\0")


def keys_digest(keys: Sequence[bytes]) -> bytes:
    """Digest of an intent's key list, 8 bytes."""
    return bytes(xxhash.xxh3_64_digest(b"".join(keys)))


@message
@dataclass(frozen=True, slots=True)
class Intent:
    """These keys will be written by this step. Per key: valid rows of the page, and the stripe that writes it (MLA)."""

    KIND: ClassVar[str] = "intent"
    epoch: Int
    intent: Int
    keys: Keys
    rows: U32
    stripes: Bytes
    requests: Strs
    owners: U32  # per key an index into requests
    tails: Int = 0

    def check(self) -> str | None:
        count = len(self.keys)
        if not count:
            return "no keys"
        if len(self.rows) != count or len(self.owners) != count or len(self.stripes) not in (0, count):
            return "columns of different lengths"
        if max(self.owners) >= len(self.requests):
            return "owner outside the request list"
        return None


@message
@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to an intent.

    `statuses` has one byte per key of the intent: granted, have, pending, no_space, refused. `positions` lists the granted
    keys; `slots` and `generations` hold `shards` values per position, key-major, `marks` 8 bytes per position and `stripes` one
    (empty: all 0). `digest` is that of the intent's key list.
    """

    KIND: ClassVar[str] = "grant"
    intent: Int
    grant: Int
    digest: Bytes
    statuses: Bytes
    shards: Int
    positions: U32
    slots: U32
    generations: U64
    marks: Bytes
    stripes: Bytes = b""

    def check(self) -> str | None:
        pages = len(self.positions) * self.shards
        if len(self.marks) != KEY_MARK_BYTES * len(self.positions):
            return "columns of different lengths"
        if len(self.stripes) not in (0, len(self.positions)):
            return "columns of different lengths"
        if len(self.slots) != pages or len(self.generations) != pages:
            return "columns of different lengths"
        if self.positions and max(self.positions) >= len(self.statuses):
            return "position outside the intent"
        return None


class _Pages:
    __slots__ = ()
    slots: U32
    generations: U64
    marks: Bytes

    def check(self) -> str | None:
        count = len(self.slots)
        if len(self.generations) != count or len(self.marks) != KEY_MARK_BYTES * count:
            return "columns of different lengths"
        return None


@message
@dataclass(frozen=True, slots=True)
class Written(_Pages):
    """A rank's last touch of these slots: the bytes are in. `marks` are the first 8 bytes of each key's content hash."""

    KIND: ClassVar[str] = "written"
    epoch: Int
    session: Int
    grant: Int
    slots: U32
    generations: U64
    marks: Bytes


@message
@dataclass(frozen=True, slots=True)
class Abandoned(_Pages):
    """A rank's last touch of these slots: the bytes are not usable."""

    KIND: ClassVar[str] = "abandoned"
    epoch: Int
    session: Int
    grant: Int
    slots: U32
    generations: U64
    marks: Bytes


@message
@dataclass(frozen=True, slots=True)
class IntentSeen:
    """The tier's re-publication of an intent, for taps."""

    KIND: ClassVar[str] = "intent_seen"
    session: Int
    intent: Int
    keys: Keys
    statuses: Bytes
    requests: Strs = field(default_factory=list)
