"""Pages whose copy on disk stays until a time, pure.

A segment goes as a whole, so a page that stays holds its segment. Segments that are held so are at most a share of the disk: the
rest goes round as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.services.tier.disk.index import DiskIndex


class DiskKeeps:
    """Times by key, and until when they hold their segments; that is looked up anew only when a key was let go or has moved."""

    def __init__(self, index: DiskIndex, share: float) -> None:
        self._index, self._share = index, share
        self._until: dict[bytes, float] = {}
        self._held: dict[int, float] = {}
        self._moves = -1  # of the index, when `_held` was right; -1: it is not

    def plan(self, only: Iterable[bytes], also: Iterable[bytes], now: float) -> set[bytes]:
        """Which keys, all on disk, are to be held: those that are `only` here, and of those in memory `also` what fits the share.

        Changes nothing. Raises `keep_full`.
        """
        segments, records = self._index.segments, self._index.records
        held = self.segments(now)
        before = taken = self._size(held)
        limit = int(self._share * self._index.capacity)
        chosen = set()
        for key in only:
            chosen.add(key)
            held.add(records[key].segment)
        taken = self._size(held)
        if taken > max(before, limit):
            raise RemoteError(
                ErrorCode.KEEP_FULL,
                f"segments of {before} bytes on disk hold kept pages, and these pages hold {taken - before} bytes more; at most"
                f" {limit} ({self._share:g} of the disk) may be held",
            )
        for key in also:
            segment = segments[records[key].segment]
            if segment.number not in held:
                if taken + segment.size > limit:
                    continue
                held.add(segment.number)
                taken += segment.size
            chosen.add(key)
        return chosen

    def hold(self, keys: Iterable[bytes], until: float) -> None:
        """A later end replaces an earlier one, never the reverse."""
        records = self._index.records
        for key in keys:
            self._until[key] = later = max(self._until.get(key, 0.0), until)
            number = records[key].segment
            self._held[number] = max(self._held.get(number, 0.0), later)

    def let_go(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            if self._until.pop(key, None) is not None:
                self._moves = -1

    def segments(self, now: float) -> set[int]:
        """Those that may not go. The caller owns the set."""
        if self._moves != self._index.moves:
            self._look(now)
        over = [number for number, until in self._held.items() if until <= now or number not in self._index.segments]
        if over:
            self._look(now)
        return set(self._held)

    def _look(self, now: float) -> None:
        records, self._moves = self._index.records, self._index.moves
        self._until = {key: until for key, until in self._until.items() if until > now and key in records}
        self._held.clear()
        for key, until in self._until.items():
            number = records[key].segment
            self._held[number] = max(self._held.get(number, 0.0), until)

    def bytes_held(self, now: float) -> int:
        return self._size(self.segments(now))

    def _size(self, numbers: Collection[int]) -> int:
        return sum(self._index.segments[number].size for number in numbers)

    def __len__(self) -> int:
        """Keys, those whose time has come since a segment last had to go included."""
        return len(self._until)
