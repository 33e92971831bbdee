"""One look at every key on disk, pure: some at a time, while pages come and go (as `tier/round.py` for memory)."""

from __future__ import annotations

from pegaflow.services.tier.disk.index import DiskIndex


class DiskRound:
    """Over the segments that are there when it is made."""

    def __init__(self, index: DiskIndex) -> None:
        self._index = index
        self._segments = list(index.segments)[::-1]
        self._keys: list[bytes] = []

    def next(self, count: int) -> list[bytes]:
        """Up to `count` keys that are still there; none: everything was seen, or `over` says that there is more."""
        if not self._keys and self._segments:
            segment = self._index.segments.get(self._segments.pop())
            self._keys = list(segment.keys) if segment is not None else []
        taken = self._keys[-count:]
        del self._keys[-count:]
        return [key for key in taken if key in self._index.records]

    @property
    def over(self) -> bool:
        return not (self._segments or self._keys)

    def rest(self) -> list[bytes]:
        """What was not looked at yet. For checks."""
        segments = [self._index.segments[number] for number in self._segments if number in self._index.segments]
        return [*self._keys, *(key for segment in segments for key in segment.keys)]
