"""Catalogue snapshots on their way to clones, pure (docs/protocol.md 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import Sync, SyncChunk
from pegaflow.services.tier.announced import Announced, Entry, Past
from pegaflow.services.tier.pages import Pages

SYNC_KEYS = 4096
MAX_SYNCS = 64
IDLE_S = 10.0
"""A snapshot that nobody has asked on about for so long is over: its clone has given up each chunk after a second."""
MAX_SIZE = 0xFFFFFFFF


class Cut(NamedTuple):
    """One chunk: keys of this width, in parts `first` to before `end`."""

    width: int
    first: int
    end: int


@dataclass(slots=True)
class Walk:
    """A snapshot that is being sent: how everything was when it began, and where its chunks begin and end."""

    head: int
    past: Past
    cuts: list[Cut]
    asked_at: float


def cuts_of(announced: Announced) -> list[Cut]:
    """Chunks of at most SYNC_KEYS keys (or one part), each of one width; at least one, so that an empty snapshot has an end."""
    sizes = announced.sizes()
    bounds: list[tuple[int, int]] = []
    first = count = 0
    for at, size in enumerate(sizes):
        if count and count + size > SYNC_KEYS:
            bounds.append((first, at))
            first, count = at, 0
        count += size
    if count:
        bounds.append((first, len(sizes)))
    widths = sorted(width for width, keys in announced.widths.items() if keys)
    return [Cut(width, *bound) for width in widths for bound in bounds] or [Cut(0, 0, 0)]


class Snapshots:
    """Those that are being sent: one per clone, and MAX_SYNCS at most."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._walks: dict[tuple[int, int], Walk] = {}

    def chunk(self, message: Sync) -> SyncChunk:
        """The chunk that is asked for; 0 begins a snapshot, of all that was published. Raises `stale_sync`."""
        name, now = (message.clone_epoch, message.sync_id), self._pages.space.now
        if message.chunk == 0:
            for old in [other for other in self._walks if other[0] == message.clone_epoch]:
                self._end(old)
            while len(self._walks) >= MAX_SYNCS:
                self._end(next(iter(self._walks)))
            announced = self._pages.announced
            self._walks[name] = Walk(announced.head, announced.remember(), cuts_of(announced), now)
        walk = self._walks.get(name)
        if walk is None or message.chunk >= len(walk.cuts):
            raise RemoteError(ErrorCode.STALE_SYNC, "that snapshot is over; begin again with chunk 0")
        walk.asked_at = now
        keys, entries = self._rows(walk, walk.cuts[message.chunk])
        if message.chunk == len(walk.cuts) - 1:
            self._end(name)
        states, levels, sizes = zip(*entries, strict=True) if entries else ((), (), ())
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

    def _rows(self, walk: Walk, cut: Cut) -> tuple[list[bytes], list[Entry]]:
        announced, keys, entries = self._pages.announced, list[bytes](), list[Entry]()
        for at in range(cut.first, cut.end):
            part = announced.part(walk.past, at)
            keys += part
            entries += part.values()
        if any(len(key) != cut.width for key in keys):
            rows = [(key, entry) for key, entry in zip(keys, entries, strict=True) if len(key) == cut.width]
            return [key for key, _ in rows], [entry for _, entry in rows]
        return keys, entries

    def _end(self, name: tuple[int, int]) -> None:
        self._pages.announced.forget(self._walks.pop(name).past)

    def tick(self, now: float) -> None:
        """Lets go of those that nobody asks on about."""
        for name in [name for name, walk in self._walks.items() if now - walk.asked_at > IDLE_S]:
            self._end(name)
