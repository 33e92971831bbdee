"""The private socket between tier and mover: whole messages out of any cut of the stream, and typed errors for the rest."""

from __future__ import annotations

import struct

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.services.tier.mover.wire import (
    MAX_FRAME_BYTES,
    MAX_METADATA_BYTES,
    AddPeer,
    Backed,
    Decoder,
    Ended,
    Failed,
    ForgetPeer,
    GiveUp,
    Message,
    Metadata,
    Ping,
    Pong,
    Read,
    Ready,
    WireBroken,
    encode,
)

U64 = st.integers(0, (1 << 64) - 1)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(AddPeer, st.text(), st.text(), U64, U64, st.binary()),
    st.builds(Read, U64, st.text(), st.binary(), st.binary(), st.binary(), st.binary()),
    st.builds(GiveUp, U64),
    st.builds(ForgetPeer, st.text()),
    st.builds(Ping, U64),
    st.builds(Backed, U64),
    st.builds(Ready, U64, st.binary()),
    st.builds(Failed, st.text(), st.text()),
    st.builds(Ended, U64, st.text(), st.text(), st.booleans()),
    st.builds(Pong, U64, U64),
)


@settings(deadline=None)
@given(st.lists(MESSAGES, max_size=6), st.integers(1, 40))
def test_any_cut_of_the_stream_gives_the_same_messages(messages: list[Message], cut: int) -> None:
    stream = b"".join(map(encode, messages))
    decoder = Decoder()
    got = [m for at in range(0, len(stream), cut) for m in decoder.feed(stream[at : at + cut])]
    assert got == messages


def frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", MAX_FRAME_BYTES + 1),
        frame(b""),
        frame(b"\xc1"),
        frame(msgpack.packb({})),
        frame(msgpack.packb([])),
        frame(msgpack.packb([99])),
        frame(msgpack.packb([-1])),
        frame(msgpack.packb([True, 1])),
        frame(msgpack.packb(["0"])),
        frame(msgpack.packb([2])),
        frame(msgpack.packb([2, 1, 1])),
        frame(msgpack.packb([2, "1"])),
        frame(msgpack.packb([2, True])),
        frame(msgpack.packb([2, 1]) + b"\0"),
    ],
)
def test_what_no_peer_sends_is_broken(data: bytes) -> None:
    assert list(Decoder().feed(encode(GiveUp(1)))) == [GiveUp(1)]
    with pytest.raises(WireBroken):
        list(Decoder().feed(data))


def test_a_read_too_large_for_a_frame_is_refused_by_its_sender() -> None:
    with pytest.raises(WireBroken):
        encode(Read(1, "b", bytes(MAX_FRAME_BYTES), b"", b"", b""))


METADATA = Metadata("node:0123", 0x7F0000000000, 1 << 30, bytes(range(200)))


def test_metadata_survives_its_envelope() -> None:
    assert Metadata.unpack(METADATA.pack()) == METADATA


@settings(deadline=None)
@given(st.integers(0, len(METADATA.pack()) - 1), st.integers(1, 255))
def test_one_changed_byte_of_metadata_is_noticed(at: int, flip: int) -> None:
    packed = bytearray(METADATA.pack())
    packed[at] ^= flip
    with pytest.raises(WireBroken):
        Metadata.unpack(bytes(packed))


@settings(deadline=None)
@given(st.integers(0, len(METADATA.pack()) - 1))
def test_truncated_metadata_is_noticed(length: int) -> None:
    with pytest.raises(WireBroken):
        Metadata.unpack(METADATA.pack()[:length])


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_foreign_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(WireBroken):
        Metadata.unpack(data)


@pytest.mark.parametrize(
    ("base", "size"), [(-1, 4096), (0, 0), (4096, -4096), ((1 << 64) - 1, 2)], ids=["below 0", "no bytes", "less", "wraps"]
)
def test_metadata_of_a_pool_that_cannot_be_is_refused(base: int, size: int) -> None:
    with pytest.raises(WireBroken, match="is none"):
        Metadata.unpack(Metadata("node:0123", base, size, b"blob").pack())


def test_metadata_has_a_size() -> None:
    with pytest.raises(WireBroken, match="at most"):
        Metadata.unpack(Metadata("node:0123", 0, 1, bytes(MAX_METADATA_BYTES)).pack())
