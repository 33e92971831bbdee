"""Catalogue snapshots on their way to clones, pure (docs/protocol.md 5.1)."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import Sync, SyncChunk
from pegaflow.services.tier.pages import Pages

SYNC_KEYS = 4096
MAX_SYNCS = 64
MAX_SIZE = 0xFFFFFFFF

Row = tuple[bytes, int, int, int]
"""Key, state, level, size."""


@dataclass(frozen=True, slots=True)
class Walk:
    """A snapshot that is being sent: the entries as they were when it began, and where its chunks begin and end."""

    head: int
    rows: list[Row]
    cuts: list[slice]

    @classmethod
    def begin(cls, head: int, rows: list[Row]) -> Walk:
        """Chunks of at most SYNC_KEYS keys, each of one width; at least one, so that an empty snapshot has an end."""
        rows.sort(key=_width)
        cuts: list[slice] = []
        start = 0
        while start < len(rows):
            end = bisect_right(rows, _width(rows[start]), start, min(start + SYNC_KEYS, len(rows)), key=_width)
            cuts.append(slice(start, end))
            start = end
        return cls(head, rows, cuts or [slice(0, 0)])


def _width(row: Row) -> int:
    return len(row[0])


class Snapshots:
    """Those that are being sent: one per clone, and MAX_SYNCS at most."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._walks: dict[tuple[int, int], Walk] = {}

    def chunk(self, message: Sync) -> SyncChunk:
        """The chunk that is asked for; 0 begins a snapshot, of all that was published. Raises `stale_sync`."""
        name = (message.clone_epoch, message.sync_id)
        if message.chunk == 0:
            for old in [other for other in self._walks if other[0] == message.clone_epoch]:
                del self._walks[old]
            while len(self._walks) >= MAX_SYNCS:
                del self._walks[next(iter(self._walks))]
            self._walks[name] = Walk.begin(self._pages.head, self._pages.snapshot())
        walk = self._walks.get(name)
        if walk is None or message.chunk >= len(walk.cuts):
            raise RemoteError(ErrorCode.STALE_SYNC, "that snapshot is over; begin again with chunk 0")
        keys, states, levels, sizes = zip(*walk.rows[walk.cuts[message.chunk]], strict=True) if walk.rows else ((), (), (), ())
        if message.chunk == len(walk.cuts) - 1:
            del self._walks[name]
        return SyncChunk(
            message.clone_epoch,
            message.sync_id,
            message.chunk,
            len(walk.cuts),
            walk.head,
            keys,
            bytes(states),
            bytes(levels),
            u32s(sizes if max(sizes, default=0) <= MAX_SIZE else (min(size, MAX_SIZE) for size in sizes)),
        )
