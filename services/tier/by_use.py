"""Keys by their last use, pure: the latest first, sorted bit by bit as they come, and merged bit by bit as they go.

To sort a million keys at once takes a second; runs of some thousand take milliseconds, and so does each batch of the merge.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable


class ByUse:
    """`add` runs in any order, `pop` at any time; of keys that were last used in the same turn the first added goes first."""

    def __init__(self) -> None:
        self._runs: list[tuple[array[int], list[bytes]]] = []
        self._heads: list[tuple[int, int, int]] = []  # minus the turn, number of the run, place in it
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, used: Iterable[tuple[bytes, int]]) -> None:
        """Keys, and the turns of their last use."""
        run = sorted(used, key=lambda row: row[1], reverse=True)
        if run:
            turns = array("q", [-turn for _, turn in run])
            heapq.heappush(self._heads, (turns[0], len(self._runs), 0))
            self._runs.append((turns, [key for key, _ in run]))
            self._count += len(run)

    def pop(self) -> bytes:
        """Raises IndexError when there is none."""
        _, number, at = self._heads[0]
        turns, keys = self._runs[number]
        if at + 1 < len(keys):
            heapq.heapreplace(self._heads, (turns[at + 1], number, at + 1))
        else:
            heapq.heappop(self._heads)
            self._runs[number] = (array("q"), [])
        self._count -= 1
        return keys[at]

    def keys(self) -> list[bytes]:
        """All that are left, in no order. For checks."""
        return [key for _, number, at in self._heads for key in self._runs[number][1][at:]]
