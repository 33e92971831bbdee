"""Pages whose copy on disk stays until a time, pure.

A segment goes as a whole, so a page that stays holds its segment. Segments that are held so are at most a share of the disk: the
rest goes round as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.services.tier.disk.index import DiskIndex


class DiskKeeps:
    """Times by key; which segments they hold is looked up when a segment must go, which is rare."""

    def __init__(self, index: DiskIndex, share: float) -> None:
        self._index, self._share = index, share
        self._until: dict[bytes, float] = {}

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
        for key in keys:
            self._until[key] = max(self._until.get(key, 0.0), until)

    def let_go(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._until.pop(key, None)

    def segments(self, now: float) -> set[int]:
        """Those that may not go. The caller owns the set."""
        records = self._index.records
        self._until = {key: until for key, until in self._until.items() if until > now and key in records}
        return {records[key].segment for key in self._until}

    def bytes_held(self, now: float) -> int:
        return self._size(self.segments(now))

    def _size(self, numbers: Collection[int]) -> int:
        return sum(self._index.segments[number].size for number in numbers)

    def __len__(self) -> int:
        """Keys, those whose time has come since a segment last had to go included."""
        return len(self._until)
