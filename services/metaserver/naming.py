"""Names of keys, pure: a keyed 64-bit hash of each, made for many keys at once.

    key as words of 8 bytes ─▶ Σ word × secret (mod 2^64) ─▶ upper half folded onto the lower ─▶ × secret ─▶ name

The secrets are odd and new in every process, so nobody outside can tell which keys share a bucket. Two keys share a name as
rarely as random numbers do, because the words of a key are those of a hash; keys that somebody makes up to share one cost misses
at most. PERF: one product of matrices instead of a call per key: 12 µs for 1,000 keys that come as a column, where to cut them
and to call `hash` takes 100.
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
from pegaflow.services.metaserver.table import Names

WORD: Final = 8
FEW: Final = 4  # up to here Python's numbers are faster than six calls of numpy
_WORDS: Final = MAX_KEY_BYTES // WORD
_NEVER_ZERO: Final = np.uint64(1)  # no table is large enough to look at this bit
_UPPER: Final = np.uint64(32)
_MASK: Final = (1 << 64) - 1


class Naming:
    """Always the same name for the same key."""

    def __init__(self) -> None:
        made = np.frombuffer(secrets.token_bytes(WORD * (_WORDS + 1 + MAX_KEY_BYTES + 1)), np.uint64) | np.uint64(1)
        self._secrets, self._last, self._by_width = made[:_WORDS], made[_WORDS], made[_WORDS + 1 :]
        self._numbers: list[int] = made.tolist()

    def of(self, keys: Collection[bytes]) -> Names:
        """One name per key, never 0."""
        if len(keys) <= FEW:
            return np.array([self._of_one(key) for key in keys], np.uint64)
        if isinstance(keys, KeyColumn):
            return self._of(np.frombuffer(keys.packed, np.uint8, offset=1), keys.width)
        width = len(next(iter(keys), b""))
        if list(map(len, keys)).count(width) != len(keys):
            return np.concatenate([self.of([key]) for key in keys])
        return self._of(np.frombuffer(b"".join(keys), np.uint8), width)

    def _of_one(self, key: bytes) -> int:
        """As `_of`, for one."""
        numbers, width = self._numbers, len(key)
        words: tuple[int, ...] = _cutter(width).unpack(key.ljust(-(-width // WORD) * WORD, b"\0"))
        name: int = (sum(map(mul, words, numbers)) + numbers[_WORDS + 1 + width]) & _MASK
        return (name ^ name >> 32) * numbers[_WORDS] & _MASK | 1

    def _of(self, data: NDArray[np.uint8], width: int) -> Names:
        """`data`: keys of `width` bytes, one after the other."""
        if not width:
            return np.zeros(0, np.uint64)
        if width % WORD:
            padded = np.zeros((len(data) // width, width + WORD - width % WORD), np.uint8)
            padded[:, :width] = data.reshape(-1, width)
            data = padded.ravel()
        words = -(-width // WORD)
        names: Names = data.view(np.uint64).reshape(-1, words) @ self._secrets[:words]
        names += self._by_width[width]
        names ^= names >> _UPPER
        names *= self._last
        names |= _NEVER_ZERO
        return names


@lru_cache(maxsize=MAX_KEY_BYTES + 1)
def _cutter(width: int) -> struct.Struct:
    return struct.Struct(f"<{-(-width // WORD)}Q")
