"""Entries of a catalogue as numbers, and what a store of them has to do for a clone."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from pegaflow.common.wire.messages.catalogue import CatalogueBeat, Delta, SyncChunk


def pack_entry(state: int, level: int, size: int) -> int:
    """One number per key instead of an object: the low byte is the state, the next the level, the rest the size in bytes."""
    return state | level << 8 | size << 16


def entry_state(entry: int) -> int:
    return entry & 0xFF


def entry_level(entry: int) -> int:
    return entry >> 8 & 0xFF


def entry_size(entry: int) -> int:
    return entry >> 16


def pack_entries(rows: Delta | SyncChunk) -> dict[bytes, int]:
    """Key → entry; of a key that stands there twice the last row counts."""
    count = len(rows.keys)
    if count > 1 and all(column == column[:1] * count for column in (rows.states, rows.levels, rows.sizes)):
        return dict.fromkeys(rows.keys, pack_entry(rows.states[0], rows.levels[0], rows.sizes[0]))
    entries = [pack_entry(*row) for row in zip(rows.states, rows.levels, rows.sizes, strict=True)]
    return dict(zip(rows.keys, entries, strict=True))


class Generation(Protocol):
    """One copy of the tier's catalogue, in whatever store: filled by `put`, seen by readers from `live` until `void`.

    `counts`: keys by state. What a store does about a generation that is void, and when, is its own business.
    """

    counts: list[int]

    @property
    def digest(self) -> bytes:
        """Of all entries (docs/protocol.md 5.4)."""

    def entries_of(self, keys: Collection[bytes]) -> list[int]:
        """The entry of each key, 0 where there is none."""

    def put(self, keys: Collection[bytes], entries: Collection[int]) -> None:
        """From now on these keys have these entries (see `pack_entry`); GONE removes. A key stands in `keys` once."""

    def live(self) -> None:
        """Whole: readers see it from now on."""

    def void(self) -> None:
        """Nobody may see any of it from now on. Idempotent."""

    def agrees(self, beat: CatalogueBeat) -> bool:
        """Whether digest and counts are the beat's."""

    def validate(self) -> None: ...
