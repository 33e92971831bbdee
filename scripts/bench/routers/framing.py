"""HTTP/1.1 cut into heads, pieces of bodies and ends. Pure; for backend and load, so it takes only what these two meet."""

from __future__ import annotations

from typing import NamedTuple


class Head(NamedTuple):
    """`line`: the first one; names of fields in lower case."""

    line: bytes
    fields: dict[bytes, bytes]


Piece = Head | bytes | None
"""A head, some bytes of its body, None at the message's end."""


class Framing:
    """One direction of one connection: bodies with a length or in chunks, no trailers."""

    __slots__ = ("_chunked", "_held", "_left")

    def __init__(self) -> None:
        self._held = b""
        self._left: int | None = None  # of the body, or of the chunk and its line end; None: a head is next
        self._chunked = False

    def feed(self, data: bytes) -> list[Piece]:
        """What `data` completed, in order. Raises ValueError for what is not taken here."""
        data = self._held + data
        pieces: list[Piece] = []
        at = 0
        while at < len(data):
            if self._left is None:
                end = data.find(b"\r\n\r\n", at)
                if end < 0:
                    break
                head = _head(data[at:end])
                at = end + 4
                pieces.append(head)
                self._chunked = head.fields.get(b"transfer-encoding") == b"chunked"
                self._left = 0 if self._chunked else _length(head)
                if not self._chunked and not self._left:
                    self._end(pieces)
            elif self._chunked and not self._left:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                size = int(data[at:end], 16)
                if size:
                    at, self._left = end + 2, size + 2
                elif len(data) < end + 4:
                    break
                else:
                    at = end + 4
                    self._end(pieces)
            else:
                part = data[at : at + self._left]
                body = part[: max(0, self._left - 2)] if self._chunked else part
                at += len(part)
                self._left -= len(part)
                if body:
                    pieces.append(body)
                if not self._chunked and not self._left:
                    self._end(pieces)
        self._held = data[at:]
        return pieces

    def _end(self, pieces: list[Piece]) -> None:
        self._left = None
        pieces.append(None)


def _head(raw: bytes) -> Head:
    line, *rest = raw.split(b"\r\n")
    fields = {}
    for field in rest:
        name, _, value = field.partition(b":")
        fields[name.lower()] = value.strip()
    return Head(line, fields)


def _length(head: Head) -> int:
    length = head.fields.get(b"content-length")
    if length is None and head.line.startswith(b"HTTP/"):
        raise ValueError(f"an answer without a length: {head}")
    return int(length or b"0")
