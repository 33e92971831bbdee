"""Envelope: small frames in front of the body, so that a tap or a filter need not decode bodies.

    topic | version (1 byte) + kind (ASCII) | header | body | buffers …

The header is a msgpack array. Which one it is follows from the socket:

    request       correlation, budget in ms (what is left of the deadline, so clocks need not agree), epoch meant (0: any)
    reply         correlation, epoch of the answering process
    publication   session, member, seq (0: not numbered), token
    event         node, epoch, seq (the head for `welcome` and beats, which are not numbered themselves)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pegaflow.common.wire.codec import Message, decode_body, encode_body, pack_row, unpack_row
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.version import PROTOCOL

_MAX_KIND = 32
_MAX_STAMPS = 256
_MAX_HEADER_BYTES = 1024
_MAX_FRAMES = 64


class RequestHeader(NamedTuple):
    correlation: int
    budget_ms: int
    epoch: int


class ReplyHeader(NamedTuple):
    correlation: int
    epoch: int


class PublicationHeader(NamedTuple):
    session: int
    member: int
    seq: int
    token: bytes


class EventHeader(NamedTuple):
    node: str
    epoch: int
    seq: int


Header = RequestHeader | ReplyHeader | PublicationHeader | EventHeader

_SHAPES: dict[type, tuple[type, ...]] = {
    RequestHeader: (int, int, int),
    ReplyHeader: (int, int),
    PublicationHeader: (int, int, int, bytes),
    EventHeader: (str, int, int),
}


class Envelope(NamedTuple):
    """A message as it lies on the wire; the body is decoded by `message()` only."""

    topic: bytes
    kind: str
    header: Any
    body: bytes
    buffers: Sequence[bytes] = ()

    def message(self) -> Any:
        """The typed message. Raises `WireError`."""
        return decode_body(self.kind, self.body)


def encode(msg: Message, header: Header, topic: bytes = b"") -> list[bytes]:
    """Frames of a message, ready for `send_multipart`."""
    return frames(msg.KIND, encode_body(msg), header, topic)


def frames(kind: str, body: bytes, header: Header, topic: bytes = b"") -> list[bytes]:
    """Frames around a body that is encoded already, as a repeated publication's is."""
    return [topic, _stamp(kind), pack_row(header), body]


@lru_cache(maxsize=_MAX_STAMPS)
def _stamp(kind: str) -> bytes:
    return bytes((PROTOCOL,)) + kind.encode("ascii")


def open_envelope(frames: Sequence[bytes], header: type[Any]) -> Envelope:
    """Checks the frames up to the header. Raises `WireError`: `bad_envelope` or `protocol_mismatch`."""
    if len(frames) < 4:
        raise WireError(ErrorCode.BAD_ENVELOPE, f"{len(frames)} frames, at least 4 expected")
    if len(frames) > _MAX_FRAMES or len(frames[2]) > _MAX_HEADER_BYTES:
        raise WireError(ErrorCode.BAD_ENVELOPE, f"{len(frames)} frames and a header of {len(frames[2])} bytes")
    kind = _kind(frames[1])
    shape = _SHAPES[header]
    try:
        row = unpack_row(frames[2])
    except WireError as error:
        raise WireError(ErrorCode.BAD_ENVELOPE, f"header: {error.text}") from None
    if len(row) < len(shape):
        raise WireError(ErrorCode.BAD_ENVELOPE, f"{len(row)} header fields, {len(shape)} expected")
    row = row[: len(shape)]
    if tuple(map(type, row)) != shape:
        raise WireError(ErrorCode.BAD_ENVELOPE, f"header fields of types {', '.join(type(value).__name__ for value in row)}")
    for value in row:
        if type(value) is int and value < 0:
            raise WireError(ErrorCode.BAD_ENVELOPE, "a header field below 0")
    return Envelope(frames[0], kind, header._make(row), frames[3], frames[4:])


@lru_cache(maxsize=_MAX_STAMPS)
def _kind(stamp: bytes) -> str:
    if not 2 <= len(stamp) <= _MAX_KIND + 1 or not stamp.isascii():
        raise WireError(ErrorCode.BAD_ENVELOPE, "second frame is not version and kind")
    if stamp[0] != PROTOCOL:
        raise WireError(ErrorCode.PROTOCOL_MISMATCH, f"peer speaks protocol {stamp[0]}, this process {PROTOCOL}")
    return stamp[1:].decode("ascii")
