"""A column of keys as it came off the wire, cut into single keys only where somebody wants single keys.

PERF: a metaserver looks a thousand keys up by their packed bytes; to cut and to hash them one by one would cost it more than the
look-up. Whoever takes the keys for themselves finds a sequence like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from pegaflow.common.wire.columns import key_width, unpack_keys


class KeyColumn(Sequence[bytes]):
    """`packed`: as `pack_keys` makes it, else `bad_message` is raised; `width`: bytes of each key, 0 of an empty column."""

    __slots__ = ("_count", "_keys", "packed", "width")
    __hash__ = None  # type: ignore[assignment]  # like a list

    def __init__(self, packed: bytes) -> None:
        self.packed, self.width = packed, key_width(packed)
        self._count = (len(packed) - 1) // self.width if self.width else 0
        self._keys: list[bytes] | None = None

    def _cut(self) -> list[bytes]:
        if self._keys is None:
            self._keys = unpack_keys(self.packed)
        return self._keys

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._cut())

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        """A slice of neighbours is a column again."""
        if isinstance(at, int):
            return self._cut()[at]
        start, stop, step = at.indices(self._count)
        if step != 1 or self._keys is not None:
            return self._cut()[at]
        if start >= stop:
            return []
        return KeyColumn(self.packed[:1] + self.packed[1 + start * self.width : 1 + stop * self.width])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KeyColumn):
            return self.packed == other.packed
        return isinstance(other, Sequence) and self._cut() == list(other)

    def __repr__(self) -> str:
        return f"KeyColumn({self._cut()!r})"
