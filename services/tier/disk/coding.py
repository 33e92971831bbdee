"""How pages and their records stand in a segment: as in memory, or sealed under a key (cipher.py).

A sealed page takes a detour through a buffer of the thread's own: sealed there on its way out, opened from there on its way in.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from threading import local

import xxhash
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.services.tier.disk.cipher import SEALED_HEADER_BYTES, Cipher, SegmentCipher
from pegaflow.services.tier.disk.record import (
    AES_GCM,
    HEADER_BYTES,
    PLAIN,
    TAG_BYTES,
    Record,
    aligned,
    coding_of,
    decode_log,
    decode_sealed,
    encode,
    encode_header,
    split_log,
)


class Coding:
    """Of all segments of one tier. `cipher` None: everything is plain. Threads may share it, each for records of its own.

    `undeciphered`: pages of earlier lives that were written under another key, or with one where there is none now, or without.
    """

    def __init__(self, cipher: Cipher | None) -> None:
        self._cipher, self.undeciphered = cipher, 0
        self._segments: dict[int, SegmentCipher] = {}
        self._tags: dict[int, dict[int, bytes]] = {}  # per segment, by offset of the page
        self._scratch = local()

    @property
    def sealed(self) -> bool:
        return self._cipher is not None

    def begin(self, number: int) -> bytes:
        """What the log of a new segment begins with."""
        if self._cipher is None:
            return encode_header(number)
        segment = self._segments[number] = self._cipher.new_segment(number)
        self._tags[number] = {}
        return encode_header(number, AES_GCM) + segment.header

    def decode(self, data: bytes, number: int, size: int) -> tuple[list[Record], int] | None:
        """The records of a log, and its bytes that could not be read; None: it is of no use."""
        coding = coding_of(data, number)
        if coding == PLAIN and self._cipher is None:
            return decode_log(data, number, size)
        if coding is None:
            return None
        start = HEADER_BYTES + (SEALED_HEADER_BYTES if coding == AES_GCM else 0)
        bodies, torn = split_log(data, number, start)
        segment = None
        if self._cipher is not None and coding == AES_GCM:
            segment = self._cipher.old_segment(number, data[HEADER_BYTES:start])
        if segment is None:  # what cannot be read, or should not lie there in plain, is of no use
            self.undeciphered += len(bodies)
            return None
        opened = [body for sealed in bodies if (body := segment.open_record(sealed)) is not None]
        found = [one for body in opened if (one := decode_sealed(body, number, size)) is not None]
        self._segments[number], self._tags[number] = segment, {record.offset: tags for record, tags in found}
        return [record for record, _ in found], torn

    def drop(self, number: int) -> None:
        """The segment has gone."""
        self._segments.pop(number, None)
        self._tags.pop(number, None)

    def buffer(self, size: int) -> memoryview:
        """Of this thread, aligned for O_DIRECT; what was in it before is void. Empty where nothing is sealed."""
        if self._cipher is None:
            return memoryview(b"")
        made: memoryview | None = getattr(self._scratch, "buffer", None)
        if made is None or len(made) < size:
            made = self._scratch.buffer = memoryview(mmap.mmap(-1, aligned(size)))
        return made[:size]

    def outgoing(self, record: Record, views: list[memoryview], room: memoryview) -> tuple[list[memoryview], bytes]:
        """What goes to disk for the parts of a page, and its record. `room`: of the thread's buffer, as long as it."""
        segment = self._segments.get(record.segment)
        if segment is None:
            return views, encode(record)
        out, tags, at = [], b"", 0
        for view, length in zip(views, record.lengths, strict=True):
            with view:
                tags += segment.seal(record.offset + at, view[:length], room[at : at + length])
            out.append(room[at : at + aligned(length)])
            at += aligned(length)
        self._tags[record.segment][record.offset] = tags
        return out, encode(record, tags, segment.seal_record)

    def opened(self, record: Record, room: memoryview, views: Sequence[memoryview]) -> bool:
        """Opens what was read into `room` into the parts of a page. False: other bytes than were written."""
        segment, at = self._segments[record.segment], 0
        tags = self._tags[record.segment].get(record.offset, b"")
        for number, (view, length) in enumerate(zip(views, record.lengths, strict=True)):
            tag = tags[TAG_BYTES * number : TAG_BYTES * (number + 1)]
            if len(tag) != TAG_BYTES or not segment.open(record.offset + at, room[at : at + length], tag, view[:length]):
                return False
            at += aligned(length)
        return True


def checksums(record: Record, views: Sequence[memoryview]) -> list[bytes]:
    """Of the parts of a page as they are in memory."""
    found = []
    for view, length in zip(views, record.lengths, strict=True):
        with view[:length] as page:
            found.append(xxhash.xxh3_128_digest(page))
    return found


BAD = str(ErrorCode.BAD_CHECKSUM)
