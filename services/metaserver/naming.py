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
from typing import Final

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
        self._secrets: dict[
            int, tuple[NDArray[np.uint64], list[int]]
        ] = {}  # by width: one per word and a last one, in both forms

    def of(self, keys: Collection[bytes]) -> Names:
        """One name per key."""
        if len(keys) <= FEW:
            return np.array([self._of_one(key) for key in keys], np.uint64)
        if isinstance(keys, KeyColumn):
            return self._of(np.frombuffer(keys.packed, np.uint8, offset=1), keys.width)
        width = len(next(iter(keys)))
        if list(map(len, keys)).count(width) != len(keys):
            return np.concatenate([self.of([key]) for key in keys])
        return self._of(np.frombuffer(b"".join(keys), np.uint8), width)

    def _secrets_for(self, width: int) -> tuple[NDArray[np.uint64], list[int]]:
        made = self._secrets.get(width)
        if made is None:
            words = -(-width // WORD)
            column = np.frombuffer(secrets.token_bytes(WORD * (words + 1)), np.uint64) | np.uint64(1)
            made = self._secrets[width] = column, column.tolist()
        return made

    def _of_one(self, key: bytes) -> int:
        """As `_of`, for one."""
        width = len(key)
        words: tuple[int, ...] = _cutter(width).unpack(key.ljust(-(-width // WORD) * WORD, b"\0"))
        made = self._secrets_for(width)[1]
        name: int = sum(map(mul, words, made)) & _MASK
        name = (name ^ name >> 32) * made[-1]
        return name & LEFT | RIGHT

    def _of(self, data: NDArray[np.uint8], width: int) -> Names:
        """`data`: keys of `width` bytes, one after the other."""
        if width % WORD:
            padded = np.zeros((len(data) // width, width + WORD - width % WORD), np.uint8)
            padded[:, :width] = data.reshape(-1, width)
            data = padded.ravel()
        made = self._secrets_for(width)[0]
        names: Names = data.view(np.uint64).reshape(-1, len(made) - 1) @ made[:-1]
        names ^= names >> _UPPER
        names *= made[-1]
        names &= _LEFT
        names |= _RIGHT
        return names


@lru_cache(maxsize=MAX_KEY_BYTES + 1)
def _cutter(width: int) -> struct.Struct:
    return struct.Struct(f"<{-(-width // WORD)}Q")
