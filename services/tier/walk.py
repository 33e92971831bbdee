"""A catalogue snapshot on its way to a clone, pure (docs/protocol.md 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

SYNC_KEYS = 4096


@dataclass(frozen=True, slots=True)
class Walk:
    """A snapshot that is being sent: the entries as they were when it began, and where its chunks begin and end."""

    head: int
    rows: list[tuple[bytes, int, int, int]]
    cuts: list[slice]

    @classmethod
    def begin(cls, head: int, rows: list[tuple[bytes, int, int, int]]) -> Walk:
        """Chunks of at most SYNC_KEYS keys, each of one width; at least one, so that an empty snapshot has an end."""
        rows.sort(key=lambda row: len(row[0]))
        cuts: list[slice] = []
        start = 0
        for i in range(1, len(rows) + 1):
            if i == len(rows) or i - start == SYNC_KEYS or len(rows[i][0]) != len(rows[start][0]):
                cuts.append(slice(start, i))
                start = i
        return cls(head, rows, cuts or [slice(0, 0)])
