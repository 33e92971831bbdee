"""What the tier and its mover say to each other over their private socket: commands down, events up.

    frame     u32 little-endian length | msgpack array [kind, field, …]
    columns   offsets u64, lengths u32, little-endian, each one `bin`

Only indices and lengths cross this socket, never page bytes. The two ends are a parent and its own child, so there is no
version negotiation: anything that does not fit is `WireBroken`, and the end that sees it gives the other up.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Any, Final, TypeAlias

import msgpack

if sys.byteorder != "little":
    raise ImportError("the mover's columns are read without copying on little-endian machines only")

# 20 bytes per page: 800,000 pages in one READ, far above what a fetch asks for, and a bound for the reader's buffer.
MAX_FRAME_BYTES: Final = 16 << 20
_HEAD: Final = struct.Struct("<I")
_METADATA_MAGIC: Final = b"PFM1"
# NIXL's blob is some kilobytes, more with many network devices.
MAX_METADATA_BYTES: Final = 1 << 20
_ADDRESSES: Final = 1 << 64


class WireBroken(Exception):
    """Bytes that no peer of this release sends."""


@dataclass(frozen=True, slots=True)
class AddPeer:
    """From now on READs of `peer` go to this agent, whose pool lies at `base`; replaces what was known of the peer."""

    peer: str
    agent: str
    base: int
    size: int
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """Copy pages of `peer` into our pool. Columns hold byte offsets from each pool's start."""

    job: int
    peer: str
    local: bytes
    remote: bytes
    lengths: bytes
    notify: bytes


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody waits for this job any more: do not post it if it is still queued, watch it lazily if it is posted."""

    job: int


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """Drop the connection to `peer` once none of its READs is unfinished."""

    peer: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Are commands still read?"""

    number: int


@dataclass(frozen=True, slots=True)
class Backed:
    """The first `size` bytes of our pool have memory."""

    size: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The pool is mapped and registered at `base`; `metadata` is the agent's opaque blob."""

    base: int
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """The mover cannot work and ends."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is over. `quiet` says that nothing can land in its destination any more; if not, only the mover's end proves
    it."""

    job: int
    outcome: str
    text: str
    quiet: bool


@dataclass(frozen=True, slots=True)
class Pong:
    """Answer to `Ping`; `notifications` counts those that came from readers of our pool."""

    number: int
    notifications: int


Message: TypeAlias = AddPeer | Read | GiveUp | ForgetPeer | Ping | Backed | Ready | Failed | Ended | Pong

_KINDS: Final[tuple[type[Any], ...]] = (AddPeer, Read, GiveUp, ForgetPeer, Ping, Backed, Ready, Failed, Ended, Pong)
_NUMBERS: Final = {cls: number for number, cls in enumerate(_KINDS)}
_TYPES: Final = {"int": int, "str": str, "bytes": bytes, "bool": bool}
_FIELDS: Final = tuple(tuple(_TYPES[field.type] for field in cls.__dataclass_fields__.values()) for cls in _KINDS)


def encode(message: Message) -> bytes:
    """One frame. Raises WireBroken when it would be larger than MAX_FRAME_BYTES."""
    body: bytes = msgpack.packb((_NUMBERS[type(message)], *astuple(message)))
    if len(body) > MAX_FRAME_BYTES:
        raise WireBroken(f"frame of {len(body)} bytes, at most {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body)) + body


class Decoder:
    """Cuts a byte stream into messages; holds at most one unfinished frame."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now. Raises WireBroken on anything malformed."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise WireBroken(f"frame of {length} bytes, at most {MAX_FRAME_BYTES}")
            end = _HEAD.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD.size : end])
            del self._buffer[:end]
            yield _decode(body)


def _decode(body: bytes) -> Message:
    try:
        row = msgpack.unpackb(body, use_list=True)
    except Exception as error:
        # msgpack raises several unrelated classes for bad input.
        raise WireBroken(f"not msgpack: {error}") from None
    if type(row) is not list or not row or type(row[0]) is not int or not 0 <= row[0] < len(_KINDS):
        raise WireBroken("a frame without a known kind")
    fields = _FIELDS[row[0]]
    if len(row) != len(fields) + 1 or any(type(value) is not kind for value, kind in zip(row[1:], fields, strict=True)):
        raise WireBroken(f"fields that do not fit {_KINDS[row[0]].__name__}")
    made: Message = _KINDS[row[0]](*row[1:])
    return made


@dataclass(frozen=True, slots=True)
class Metadata:
    """What one mover must know of another to read its pool.

    Wrapped with a checksum because NIXL may drop a working connection when the blob of a known peer arrives truncated: what
    is not whole never gets near NIXL.
    """

    agent: str
    base: int
    size: int
    blob: bytes

    def pack(self) -> bytes:
        body: bytes = msgpack.packb(astuple(self))
        return _METADATA_MAGIC + _HEAD.pack(zlib.crc32(body)) + body

    @classmethod
    def unpack(cls, data: bytes) -> Metadata:
        """Raises WireBroken for anything that `pack` did not make."""
        start = len(_METADATA_MAGIC) + _HEAD.size
        if len(data) > MAX_METADATA_BYTES:
            raise WireBroken(f"metadata of {len(data)} bytes, at most {MAX_METADATA_BYTES}")
        if len(data) <= start or data[: len(_METADATA_MAGIC)] != _METADATA_MAGIC:
            raise WireBroken("not a mover's metadata")
        body = data[start:]
        if _HEAD.unpack_from(data, len(_METADATA_MAGIC))[0] != zlib.crc32(body):
            raise WireBroken("metadata damaged on its way")
        try:
            row = msgpack.unpackb(body, use_list=True)
        except Exception as error:
            raise WireBroken(f"metadata is not msgpack: {error}") from None
        kinds = (str, int, int, bytes)
        if type(row) is not list or len(row) != len(kinds):
            raise WireBroken("metadata of another shape")
        if any(type(value) is not kind for value, kind in zip(row, kinds, strict=True)):
            raise WireBroken("metadata of other types")
        made = cls(*row)
        # Our mover adds offsets to this address: what is no address would end it, and every READ that it has open.
        if made.base < 0 or made.size <= 0 or made.base + made.size > _ADDRESSES:
            raise WireBroken(f"a pool of {made.size} bytes at {made.base} is none")
        return made
