"""Names of keys, pure: a keyed 64-bit hash of each, made for many keys at once.

    key as words of 8 bytes ─▶ Σ word × secret (mod 2^64) ─▶ upper half folded onto the lower ─▶ × secret ─▶ name

The secrets are new in every process, so nobody outside can tell which keys share a bucket. Two keys share a name as rarely as
random numbers do, because the words of a key are those of a hash; keys that somebody makes up to share one cost misses at most.
PERF: a product of matrices instead of a call per key: 10 µs for 1,000 keys that come as a column, where to cut them and to call
`hash` takes 100.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Collection
from functools import lru_cache
from operator import mul
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pegaflow.common.wire.columns import MAX_KEY_BYTES
from pegaflow.common.wire.key_column import KeyColumn
from pegaflow.services.metaserver.table import LEFT, RIGHT, Names

WORD: Final = 8
FEW: Final = 4  # up to here Python's numbers are faster than ten calls of numpy
_MASK: Final = (1 << 64) - 1
_UPPER: Final = np.uint64(32)
_LEFT: Final = np.uint64(LEFT)
_RIGHT: Final = np.uint64(RIGHT)


class Naming:
    """Always the same name for the same key, as a `Table` wants it."""

    def __init__(self) -> None:
        self._secrets: dict[int, _Secrets] = {}  # by width

    def of(self, keys: Collection[bytes]) -> Names:
        """One name per key."""
        if len(keys) <= FEW:
            return np.array([self._of_one(key) for key in keys], np.uint64)
        if isinstance(keys, KeyColumn):
            return self._of(keys.packed, 1, len(keys), keys.width)
        width = len(next(iter(keys)))
        if list(map(len, keys)).count(width) != len(keys):
            return np.concatenate([self.of([key]) for key in keys])
        return self._of(b"".join(keys), 0, len(keys), width)

    def _secrets_for(self, width: int) -> _Secrets:
        made = self._secrets.get(width)
        if made is None:
            column = np.frombuffer(secrets.token_bytes(WORD * (1 + -(-width // WORD))), np.uint64) | np.uint64(1)
            made = self._secrets[width] = _Secrets(column[:-1], column[-1], column.tolist())
        return made

    def _of_one(self, key: bytes) -> int:
        """As `_of`, for one."""
        width = len(key)
        words: tuple[int, ...] = _cutter(width).unpack(key.ljust(-(-width // WORD) * WORD, b"\0"))
        numbers = self._secrets_for(width).numbers
        name: int = sum(map(mul, words, numbers)) & _MASK
        name = (name ^ name >> 32) * numbers[-1]
        return name & LEFT | RIGHT

    def _of(self, data: bytes, at: int, count: int, width: int) -> Names:
        """`data`: from `at` on `count` keys of `width` bytes, one after the other."""
        if width % WORD:
            padded = np.zeros((count, width + WORD - width % WORD), np.uint8)
            padded[:, :width] = np.frombuffer(data, np.uint8, offset=at).reshape(count, width)
            data, at = padded.tobytes(), 0
        made = self._secrets_for(width)
        names: Names = np.ndarray((count, len(made.column)), np.uint64, data, at).dot(made.column)
        names ^= names >> _UPPER
        names *= made.last
        names &= _LEFT
        names |= _RIGHT
        return names


class _Secrets(NamedTuple):
    """`column`: one per word of a key; `last`: for the end; `numbers`: all of them."""

    column: NDArray[np.uint64]
    last: np.uint64
    numbers: list[int]


@lru_cache(maxsize=MAX_KEY_BYTES + 1)
def _cutter(width: int) -> struct.Struct:
    return struct.Struct(f"<{-(-width // WORD)}Q")
