"""Columns: many values of one type packed into one `bin`, so that a message costs the same to decode for 1 and 1,000 pages.

    keys     u8 width | key 0 | key 1 | …      (an empty column is the single byte 0)
    u32, u64 little-endian, without a header

Keys of one column have one width. A sender with mixed widths sends several messages.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from pegaflow.common.wire.errors import ErrorCode, WireError

if sys.byteorder != "little":
    raise ImportError("pegaflow's wire format is read without copying on little-endian machines only")

MAX_KEY_BYTES = 64
"""What the slot table and the disk's log have room for."""
MAX_KEYS = 1 << 18
"""Of one column: four million tokens at 16 a page. Each key is an object of its own: short ones take ten times as much
memory as on the wire."""
_KEYS_AT_ONCE = 32


def u32s(values: Iterable[int] = ()) -> array[int]:
    """A column of unsigned 32-bit numbers."""
    return array("I", values)


def u64s(values: Iterable[int] = ()) -> array[int]:
    """A column of unsigned 64-bit numbers."""
    return array("Q", values)


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Packs keys of one width. Raises `bad_message` when they are not, `too_large` when there are too many."""
    if not keys:
        return b"\0"
    width = len(keys[0])
    if len(keys) > MAX_KEYS:
        raise WireError(ErrorCode.TOO_LARGE, f"{len(keys)} keys in one column, at most {MAX_KEYS}")
    if not 0 < width <= MAX_KEY_BYTES:
        raise WireError(ErrorCode.BAD_MESSAGE, f"key of {width} bytes, expected 1 to {MAX_KEY_BYTES}")
    if list(map(len, keys)).count(width) != len(keys):
        raise WireError(ErrorCode.BAD_MESSAGE, "keys of different widths in one column")
    return bytes((width,)) + b"".join(keys)


def key_width(data: bytes) -> int:
    """The width of a column's keys, 0 of an empty one. Raises `bad_message` if this is not the shape of a column, `too_large`
    beyond MAX_KEYS.
    """
    if not data:
        raise WireError(ErrorCode.BAD_MESSAGE, "key column without its header")
    width = data[0]
    if width == 0 and len(data) == 1:
        return 0
    if not 0 < width <= MAX_KEY_BYTES or (len(data) - 1) % width:
        raise WireError(ErrorCode.BAD_MESSAGE, f"key column of {len(data)} bytes does not fit width {width}")
    if (len(data) - 1) // width > MAX_KEYS:
        raise WireError(ErrorCode.TOO_LARGE, f"{(len(data) - 1) // width} keys in one column, at most {MAX_KEYS}")
    return width


def unpack_keys(data: bytes) -> list[bytes]:
    """The inverse of `pack_keys`. Raises `bad_message` on any other shape, `too_large` beyond MAX_KEYS."""
    width = key_width(data)
    if not width:
        return []
    # PERF: one call cuts many keys; slicing them one by one costs three times as much.
    cut = _cutter(width)
    whole = 1 + (len(data) - 1) // cut.size * cut.size
    keys: list[bytes] = []
    for at in range(1, whole, cut.size):
        keys += cut.unpack_from(data, at)
    keys += [data[i : i + width] for i in range(whole, len(data), width)]
    return keys


@lru_cache(maxsize=MAX_KEY_BYTES)
def _cutter(width: int) -> struct.Struct:
    return struct.Struct(f"{width}s" * _KEYS_AT_ONCE)


def unpack_array(typecode: str, data: Any) -> array[int]:
    """A column of numbers from its bytes. Raises `bad_message` if the length is not a multiple of the item size."""
    out = array(typecode)
    if len(data) % out.itemsize:
        raise WireError(ErrorCode.BAD_MESSAGE, f"column of {len(data)} bytes is not a multiple of {out.itemsize}")
    out.frombytes(data)
    return out
