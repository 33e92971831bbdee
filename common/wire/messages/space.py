"""The pool's space, for routers and operators: probe what is here, keep a prefix for a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pegaflow.common.wire.codec import Bytes, Int, Keys, message

MAX_KEEP_MS = 7 * 24 * 3_600_000
UNKNOWN, PENDING, SEALED, FETCHING = range(4)


@message
@dataclass(frozen=True, slots=True)
class Probe:
    """What are these keys here? Looks only: nothing is refreshed, pinned, awaited or fetched for it."""

    KIND: ClassVar[str] = "probe"
    keys: Keys


@message
@dataclass(frozen=True, slots=True)
class Probed:
    """Per key its state (0 unknown, 1 pending, 2 sealed, 3 being fetched) and its level (0 memory, 1 disk)."""

    KIND: ClassVar[str] = "probed"
    states: Bytes
    levels: Bytes

    def check(self) -> str | None:
        return None if len(self.states) == len(self.levels) else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class Keep:
    """Do not evict these pages, nor those they continue, for `ttl_ms`. A later end replaces an earlier one, never the reverse.

    What is only on disk is held there. Refused with `keep_full` if more than the configured share of the pool, or of the disk,
    would be held; then nothing has changed.
    """

    KIND: ClassVar[str] = "keep"
    keys: Keys
    ttl_ms: Int

    def check(self) -> str | None:
        return None if 0 < self.ttl_ms <= MAX_KEEP_MS else f"ttl_ms {self.ttl_ms}, 1 to {MAX_KEEP_MS}"


@message
@dataclass(frozen=True, slots=True)
class Kept:
    """Per key 1 if it is kept, 0 if it is not here (or not sealed yet); `kept_bytes`: of pool and disk segments, in all."""

    KIND: ClassVar[str] = "kept"
    states: Bytes
    kept_bytes: Int


@message
@dataclass(frozen=True, slots=True)
class Unkeep:
    """These pages may be evicted again; keys that are not kept are ignored."""

    KIND: ClassVar[str] = "unkeep"
    keys: Keys
