"""Columns: many values of one type packed into one `bin`, so that a message costs the same to decode for 1 and 1,000 pages.

    keys     u8 prefix length | u8 width of the rest | prefix | rest of key 0 | rest of key 1 | …
             All keys of one message mostly share their fingerprint; then it is sent once.
    u32, u64 little-endian, without a header

Keys of one column have one width. A sender with mixed widths sends several messages.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from pegaflow.common.wire.errors import ErrorCode, WireError

if sys.byteorder != "little":
    raise ImportError("pegaflow's wire format is read without copying on little-endian machines only")

FINGERPRINT_BYTES = 16
MAX_KEY_BYTES = 80

U32s = array  # array("I")
U64s = array  # array("Q")


def u32s(values: Iterable[int] = ()) -> array[int]:
    """A column of unsigned 32-bit numbers."""
    return array("I", values)


def u64s(values: Iterable[int] = ()) -> array[int]:
    """A column of unsigned 64-bit numbers."""
    return array("Q", values)


def pack_keys(keys: Sequence[bytes]) -> bytes:
    """Packs keys of one width; the fingerprint is factored out when all share it."""
    if not keys:
        return b"\0\0"
    first = keys[0]
    width = len(first)
    if not 0 < width <= MAX_KEY_BYTES:
        raise WireError(ErrorCode.BAD_MESSAGE, f"key of {width} bytes, expected 1 to {MAX_KEY_BYTES}")
    joined = b"".join(keys)
    if len(joined) != width * len(keys) or any(len(key) != width for key in keys):
        raise WireError(ErrorCode.BAD_MESSAGE, "keys of different widths in one column")
    prefix = first[:FINGERPRINT_BYTES]
    if width > FINGERPRINT_BYTES and all(key.startswith(prefix) for key in keys):
        rest = b"".join([key[FINGERPRINT_BYTES:] for key in keys])
        return bytes((FINGERPRINT_BYTES, width - FINGERPRINT_BYTES)) + prefix + rest
    return bytes((0, width)) + joined


def unpack_keys(data: bytes) -> list[bytes]:
    """The inverse of `pack_keys`. Raises `bad_message` on any other shape."""
    if len(data) < 2:
        raise WireError(ErrorCode.BAD_MESSAGE, "key column without its header")
    prefix_len, width = data[0], data[1]
    if prefix_len == 0 and width == 0 and len(data) == 2:
        return []
    start = 2 + prefix_len
    if width == 0 or prefix_len + width > MAX_KEY_BYTES or len(data) < start or (len(data) - start) % width:
        raise WireError(ErrorCode.BAD_MESSAGE, f"key column of {len(data)} bytes does not fit width {width}")
    if not prefix_len:
        return [data[i : i + width] for i in range(2, len(data), width)]
    prefix = data[2:start]
    return [prefix + data[i : i + width] for i in range(start, len(data), width)]


def unpack_array(typecode: str, data: Any) -> array[int]:
    """A column of numbers from its bytes. Raises `bad_message` if the length is not a multiple of the item size."""
    out = array(typecode)
    if len(data) % out.itemsize:
        raise WireError(ErrorCode.BAD_MESSAGE, f"column of {len(data)} bytes is not a multiple of {out.itemsize}")
    out.frombytes(data)
    return out
