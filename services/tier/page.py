"""One page of the tier, pure: a key, its slots, and what state it is in.

A page goes through these states once:

    PENDING ──all shards written, checksummed──▶ SEALED ──evicted, bad──▶ DOOMED ──nothing touches the slots──▶ freed
       │ abandoned                                  ▲
       ├──────────────▶ DOOMED                      │ first sealed wins
       └ promise stale ▶ STALE ──written after all──┘
    FETCHING ──READ ended in time, checksum fits──▶ SEALED      (else DOOMED)

A page that an earlier life of the tier sealed is SEALED and not `verified`: other nodes may look for it at once, and a wrong hint
costs them a miss; here it is waited for, like a page on its way, until its checksum was found to fit.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from pegaflow.common.slot_table import GRANULE


class PageState(StrEnum):
    PENDING = "pending"
    STALE = "stale"
    FETCHING = "fetching"
    SEALED = "sealed"
    DOOMED = "doomed"


class Page:
    """One key and its slots, one per shard. `writers[i]` is the member that may still write slot i (0: nobody).

    `owner`: the tier that it was fetched from, in which life (fetches.py); `replica`: it came from another tier.
    `parent`, `child`, `left`, `right` are the eviction's lineage, `age` to `timed` its notes (services/tier/eviction).
    """

    __slots__ = (
        "age",
        "checksums",
        "child",
        "first_generation",
        "first_slot",
        "generations",
        "grant",
        "granules",
        "group",
        "hold_until",
        "kept_until",
        "key",
        "lane",
        "left",
        "lengths",
        "order",
        "owner",
        "parent",
        "place",
        "refs",
        "replica",
        "request",
        "right",
        "rows",
        "session",
        "size",
        "slots",
        "state",
        "timed",
        "unwritten",
        "used_at",
        "uses",
        "verified",
        "writers",
    )

    def __init__(self, key: bytes, state: PageState, slots: list[int], generations: list[int], lengths: tuple[int, ...]) -> None:
        self.key, self.state, self.slots, self.generations, self.lengths = key, state, slots, generations, lengths
        self.first_slot, self.first_generation = slots[0], generations[0]
        self.size, _, self.granules = shape(lengths)
        self.rows = 0
        self.refs = 0
        self.session = 0
        self.grant = self.order = 0
        self.request = ""
        self.writers = [0] * len(slots)
        self.unwritten = set(range(len(slots)))
        self.checksums: list[bytes] = []
        self.verified = True
        self.parent: Page | None = None
        self.child: Page | None = None
        self.left: Page | None = None
        self.right: Page | None = None
        self.group: Any = None
        self.replica = state is PageState.FETCHING
        self.owner: Any = None
        self.age = 0
        self.used_at = 0
        self.lane = ""
        self.place = 0
        self.uses = 0
        self.hold_until = 0.0
        self.kept_until = 0.0
        self.timed = False

    @property
    def namespace(self) -> bytes:
        """The fingerprint in the key: one model in one layout."""
        return self.key[:16]


def granules(length: int) -> int:
    """How many granules a page of `length` bytes takes."""
    return -(-length // GRANULE)


class Shape(NamedTuple):
    """Of a page: bytes in all, granules of each of its slots, granules in all."""

    size: int
    slots: tuple[int, ...]
    granules: int


@lru_cache(maxsize=256)
def shape(lengths: tuple[int, ...]) -> Shape:
    """Of a page with slots for so many bytes."""
    # PERF: every page of an engine has the same lengths, and this is asked several times for each page.
    slots = tuple(map(granules, lengths))
    return Shape(sum(lengths), slots, sum(slots))
