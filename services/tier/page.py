"""One page of the tier, pure: a key, its slots, and what state it is in.

A page goes through these states once:

    PENDING ──all shards written, checksummed──▶ SEALED ──evicted, bad──▶ DOOMED ──nothing touches the slots──▶ freed
       │ abandoned                                  ▲
       ├──────────────▶ DOOMED                      │ first sealed wins
       └ promise stale ▶ STALE ──written after all──┘
    FETCHING ──READ ended in time, checksum fits──▶ SEALED      (else DOOMED)
"""

from __future__ import annotations

from enum import StrEnum

from pegaflow.common.pool import GRANULE


class PageState(StrEnum):
    PENDING = "pending"
    STALE = "stale"
    FETCHING = "fetching"
    SEALED = "sealed"
    DOOMED = "doomed"


class Page:
    """One key and its slots, one per shard. `writers[i]` is the member that may still write slot i (0: nobody)."""

    __slots__ = (
        "checksums",
        "first_generation",
        "first_slot",
        "generations",
        "grant",
        "granules",
        "keep_until",
        "key",
        "lengths",
        "refs",
        "request",
        "rows",
        "session",
        "slots",
        "state",
        "unwritten",
        "writers",
    )

    def __init__(self, key: bytes, state: PageState, slots: list[int], generations: list[int], lengths: tuple[int, ...]) -> None:
        self.key, self.state, self.slots, self.generations, self.lengths = key, state, slots, generations, lengths
        self.first_slot, self.first_generation = slots[0], generations[0]
        self.granules = sum(map(granules, lengths))
        self.rows = 0
        self.refs = 0
        self.session = 0
        self.grant = 0
        self.request = ""
        self.writers = [0] * len(slots)
        self.unwritten = set(range(len(slots)))
        self.checksums: list[bytes] = []
        self.keep_until = 0.0

    @property
    def size(self) -> int:
        return sum(self.lengths)


def granules(length: int) -> int:
    """How many granules a page of `length` bytes takes."""
    return -(-length // GRANULE)
