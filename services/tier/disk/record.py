"""What the disk level knows of one page, and how that stands in a segment's log, pure.

    segment   <16 hex>.pages   the bytes, page after page, each part on a multiple of ALIGN
              <16 hex>.log     header │ record │ record │ …      appended after the bytes are written, never changed

    header    magic 8 B | version u32 | coding u32 | number u64 | crc32 of all these
    record    crc32 u32 | body bytes u16 | body
    body      key bytes u8 | shards u8 | rows u16 | offset u64 | key | lengths, u32 each | checksums, 16 B each

With a key (cipher.py, coding AES_GCM) 48 bytes follow the header, and a record's body is: offset u64 | sealed body | tag 16 B. In
the sealed body the tags of the page's parts follow the checksums, 16 B each.

The crc of a record begins with the segment's number, so that a log under another name says nothing. A log ends where a record
does not fit: what a torn append has left costs its own page only. `coding` says how the bytes are written: PLAIN, as in memory,
or AES_GCM.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pegaflow.common.wire.columns import MAX_KEY_BYTES

ALIGN: Final = 4096
"""Of every offset and length on disk, for O_DIRECT; slots in memory are multiples of it."""
PLAIN: Final = 0
AES_GCM: Final = 1
MAX_SHARDS: Final = 255
CHECKSUM_BYTES: Final = 16
TAG_BYTES: Final = 16

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


def coding_of(data: bytes, number: int) -> int | None:
    """How the log of this segment is written; None: it is not its log."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, coding, mine = _HEADER.unpack_from(data)
    if (magic, version, mine) != (_MAGIC, _VERSION, number) or coding not in (PLAIN, AES_GCM):
        return None
    return int(coding) if _CRC.unpack_from(data, _HEADER.size)[0] == zlib.crc32(data[: _HEADER.size]) else None


def encode(record: Record, tags: bytes = b"", seal: Callable[[int, bytes], bytes] | None = None) -> bytes:
    """One record of its segment's log; with `seal` sealed, with the tags of the page's parts."""
    count = len(record.lengths)
    body = _BODY.pack(len(record.key), count, record.rows, record.offset) + record.key
    body += struct.pack(f"<{count}I", *record.lengths) + b"".join(record.checksums) + tags
    if seal is not None:
        body = seal(record.offset, body)
    return _FRAME.pack(_crc(record.segment, body), len(body)) + body


def _crc(number: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(number.to_bytes(8, "little")))


def decode_log(data: bytes, number: int, size: int) -> tuple[list[Record], int] | None:
    """The records of a plain log whose segment has `size` bytes, and its bytes that could not be read; None: no such log."""
    if coding_of(data, number) != PLAIN:
        return None
    bodies, torn = split_log(data, number, HEADER_BYTES)
    records = [record for body in bodies if (record := decode_record(body, number, size)) is not None]
    return records, torn


def split_log(data: bytes, number: int, at: int) -> tuple[list[bytes], int]:
    """The bodies of a log's records from byte `at` on, and how many bytes at its end could not be read."""
    bodies: list[bytes] = []
    while at + _FRAME.size <= len(data):
        crc, length = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(body) < length or crc != _crc(number, body):
            break
        at += _FRAME.size + length
        bodies.append(body)
    return bodies, len(data) - at


def decode_record(body: bytes, number: int, size: int) -> Record | None:
    """None: whole, but it makes no sense in a segment of `size` bytes."""
    record = _record(body, number)
    return record if record is not None and record.offset + record.extent <= size else None


def decode_sealed(body: bytes, number: int, size: int) -> tuple[Record, bytes] | None:
    """A record and the tags of its parts, from a body that was sealed; None: it makes no sense."""
    count = body[1] if len(body) > 1 else 0
    cut = len(body) - TAG_BYTES * count
    record = decode_record(body[:cut], number, size) if 0 < cut < len(body) else None
    return None if record is None else (record, body[cut:])


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
