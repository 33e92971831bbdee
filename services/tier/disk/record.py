"""What the disk level knows of one page, and how that stands in a segment's log, pure.

    segment   <16 hex>.pages   the bytes, page after page, each part on a multiple of ALIGN
              <16 hex>.log     header │ record │ record │ …      appended after the bytes are written, never changed

    header    magic 8 B | version u32 | coding u32 | number u64 | crc32 of all these
    record    crc32 u32 | body bytes u16 | body
    body      key bytes u8 | shards u8 | rows u16 | offset u64 | key | lengths, u32 each | checksums, 16 B each

The crc of a record begins with the segment's number, so that a log under another name says nothing. A log ends where a record
does not fit: what a torn append has left costs its own page only. `coding` says how the bytes are written: PLAIN, as in memory.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pegaflow.common.wire.columns import MAX_KEY_BYTES

ALIGN: Final = 4096
"""Of every offset and length on disk, for O_DIRECT; slots in memory are multiples of it."""
PLAIN: Final = 0
MAX_SHARDS: Final = 255
CHECKSUM_BYTES: Final = 16

_MAGIC, _VERSION = b"PGDISK\0\1", 1
_HEADER = struct.Struct("<8sIIQ")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<IH")
_BODY = struct.Struct("<BBHQ")
HEADER_BYTES: Final = _HEADER.size + _CRC.size


def aligned(length: int) -> int:
    """Bytes on disk for `length` bytes of a page."""
    return -(-length // ALIGN) * ALIGN


@dataclass(frozen=True, slots=True)
class Record:
    """One page on disk: its parts, one per shard, follow each other from `offset` on."""

    key: bytes
    segment: int
    offset: int
    lengths: tuple[int, ...]
    rows: int
    checksums: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes of the page."""
        return sum(self.lengths)

    @property
    def extent(self) -> int:
        """Bytes on disk."""
        return sum(map(aligned, self.lengths))


def encode_header(number: int, coding: int = PLAIN) -> bytes:
    body = _HEADER.pack(_MAGIC, _VERSION, coding, number)
    return body + _CRC.pack(zlib.crc32(body))


def encode(record: Record) -> bytes:
    """One record of its segment's log."""
    count = len(record.lengths)
    body = _BODY.pack(len(record.key), count, record.rows, record.offset) + record.key
    body += struct.pack(f"<{count}I", *record.lengths) + b"".join(record.checksums)
    return _FRAME.pack(_crc(record.segment, body), len(body)) + body


def _crc(number: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(number.to_bytes(8, "little")))


def decode_log(data: bytes, number: int, size: int) -> tuple[list[Record], int] | None:
    """The records of a log whose segment has `size` bytes, and how many bytes of the log could not be read; None: not its log."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, coding, mine = _HEADER.unpack_from(data)
    good = (magic, version, coding, mine) == (_MAGIC, _VERSION, PLAIN, number)
    if not good or _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(data[: _HEADER.size]):
        return None
    records: list[Record] = []
    at = HEADER_BYTES
    while at + _FRAME.size <= len(data):
        crc, length = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(body) < length or crc != _crc(number, body):
            break
        at += _FRAME.size + length
        record = _record(body, number)
        if record is not None and record.offset + record.extent <= size:
            records.append(record)
    return records, len(data) - at


def _record(body: bytes, number: int) -> Record | None:
    """None: whole, but it makes no sense."""
    if len(body) < _BODY.size:
        return None
    width, count, rows, offset = _BODY.unpack_from(body)
    at = _BODY.size
    if not 16 < width <= MAX_KEY_BYTES or not count or len(body) != at + width + (4 + CHECKSUM_BYTES) * count or offset % ALIGN:
        return None
    key = body[at : at + width]
    lengths: Sequence[int] = struct.unpack_from(f"<{count}I", body, at + width)
    at += width + 4 * count
    checksums = tuple(body[i : i + CHECKSUM_BYTES] for i in range(at, len(body), CHECKSUM_BYTES))
    return Record(key, number, offset, tuple(lengths), rows, checksums) if all(lengths) else None
