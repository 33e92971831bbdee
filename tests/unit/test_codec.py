"""What does not decode is a typed error, and versions that differ by trailing fields understand each other."""

from __future__ import annotations

import dataclasses
import tracemalloc
from array import array
from typing import Any

import msgpack
import pytest
from pegaflow.common.wire import codec, columns
from pegaflow.common.wire.codec import decode_body, encode_body
from pegaflow.common.wire.columns import MAX_KEY_BYTES, pack_keys, unpack_array, unpack_keys
from pegaflow.common.wire.envelope import Envelope, EventHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.messages.attach import Alive
from pegaflow.common.wire.messages.catalogue import Hello, Locate, Located, NodeDown
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.common.wire.messages.operate import Ping
from wire_samples import MESSAGES

WRONG: tuple[Any, ...] = (None, 1.5, {}, [1], "text", b"bytes", 7, True, -(1 << 63))
HELLO = ["a", 1, "r", "e", "c", "1"]


def body(*fields: Any) -> bytes:
    return bytes(msgpack.packb(list(fields), use_bin_type=True))


def code(kind: str, data: bytes) -> str:
    with pytest.raises(WireError) as caught:
        decode_body(kind, data)
    return caught.value.code


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_every_truncation_is_an_error(message: Any) -> None:
    whole = encode_body(message)
    for length in range(len(whole)):
        assert code(message.KIND, whole[:length]) == ErrorCode.BAD_MESSAGE


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_bytes_after_the_body_are_an_error(message: Any) -> None:
    assert code(message.KIND, encode_body(message) + b"\0") == ErrorCode.BAD_MESSAGE


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_trailing_fields_that_are_not_known_are_ignored(message: Any) -> None:
    row = msgpack.unpackb(encode_body(message))
    assert decode_body(message.KIND, body(*row, "new", {"even": "a map"}, None)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.KIND)
def test_a_field_of_a_wrong_type_is_named(message: Any) -> None:
    row = msgpack.unpackb(encode_body(message))
    for i, name in enumerate(field.name for field in dataclasses.fields(message)):
        for wrong in WRONG:
            spoiled = [*row[:i], wrong, *row[i + 1 :]]
            try:
                decoded = decode_body(message.KIND, body(*spoiled))
            except WireError as error:
                assert error.code == ErrorCode.BAD_MESSAGE
                assert error.text.startswith(message.KIND)
            else:  # a value of the right type after all
                assert type(getattr(decoded, name)) is type(getattr(message, name))


def test_a_wrong_type_says_which_field() -> None:
    with pytest.raises(WireError, match=r"hello\.epoch: expected an unsigned 64-bit number, got str"):
        decode_body("hello", body("a", "one", "r", "e", "c", "1"))


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1", b"1", None])
def test_what_is_no_unsigned_number(epoch: Any) -> None:
    assert code("hello", body("a", epoch, "r", "e", "c", "1")) == ErrorCode.BAD_MESSAGE


def test_the_largest_number() -> None:
    assert decode_body("hello", body("a", (1 << 64) - 1, "r", "e", "c", "1")).epoch == (1 << 64) - 1


def test_missing_trailing_fields_get_their_defaults() -> None:
    assert decode_body("hello", body(*HELLO)) == Hello("a", 1, "r", "e", "c", "1", draining=False)
    alive = decode_body("alive", body(1, 2, 3))
    assert alive == Alive(1, 2, 3) and alive.grants == array("Q")


def test_missing_fields_without_a_default_are_an_error() -> None:
    assert code("hello", body(*HELLO[:-1])) == ErrorCode.BAD_MESSAGE


def test_an_unknown_kind_is_unsupported() -> None:
    assert code("from_the_future", body()) == ErrorCode.UNSUPPORTED


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xc0", b"\x01", b"\x80", b"\xa1x", b"\xdd\xff\xff\xff\xff", b"\x91" * 5000])
def test_what_is_no_array(data: bytes) -> None:
    assert code("ping", data) == ErrorCode.BAD_MESSAGE


def test_a_body_above_the_limit_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_BODY_BYTES", 100)
    assert code("log_level", body("x" * 98)) == ErrorCode.TOO_LARGE
    assert decode_body("log_level", body("x" * 96)).level == "x" * 96


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\x90"


@pytest.mark.parametrize("depth", [2, 511, 1000, 5000, 200_000])
def test_a_deeply_nested_body_is_an_error_and_no_overflow(depth: int) -> None:
    """At any depth, also where the interpreter's or msgpack's own stack would end."""
    for kind in ("hello", "release", "intent"):
        assert code(kind, nested(depth)) in (ErrorCode.BAD_MESSAGE, ErrorCode.TOO_LARGE)


@pytest.mark.parametrize("small", [b"\x90", b"\x80", b"\xa0", b"\xc4\0", b"\xc0"], ids=["list", "map", "text", "bytes", "nil"])
def test_a_body_cannot_make_us_allocate_many_times_its_size(small: bytes) -> None:
    """The cheapest values on the wire are dear in memory: sixty bytes for one."""
    flat = b"\xdd" + (4 << 20).to_bytes(4, "big") + small * (4 << 20)
    some = b"\xdc" + (60_000).to_bytes(2, "big") + small * 60_000
    folded = b"\xdc" + (60).to_bytes(2, "big") + some * 60
    tracemalloc.start()
    try:
        for data in (flat, folded):
            assert code("node_list", data) in (ErrorCode.BAD_MESSAGE, ErrorCode.TOO_LARGE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20, f"{peak >> 20} MiB"


def test_more_keys_than_a_prompt_can_have_are_refused_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_KEYS", 100)
    many = [n.to_bytes(2, "big") for n in range(101)]
    whole = pack_keys(many[:100])
    assert unpack_keys(whole) == many[:100]
    for refused in (lambda: pack_keys(many), lambda: unpack_keys(whole + many[100])):
        with pytest.raises(WireError) as caught:
            refused()
        assert caught.value.code == ErrorCode.TOO_LARGE


def test_a_text_in_every_place_of_the_longest_list_is_no_more_than_it_says() -> None:
    message = NodeDown("n", 1, "x" * (1 << 20))
    assert decode_body("node_down", encode_body(message)) == message


def test_columns_that_do_not_fit_each_other() -> None:
    located = Located(b"\2", 1, array("I", [0]), ["a"], array("Q", [1]), ["r"])
    for wrong in (
        Located(b"\2\2", 1, located.owners, ["a"], located.epochs, ["r"]),
        Located(b"\2", 1, array("I", [1]), ["a"], located.epochs, ["r"]),
        Located(b"\2", 1, located.owners, ["a", "b"], located.epochs, ["r"]),
        Hits(1, 1, 2, -1, 1, array("I", [1]), array("Q", [1]), b"\0\0", ""),
    ):
        assert code(wrong.KIND, encode_body(wrong)) == ErrorCode.BAD_MESSAGE
    assert decode_body("located", encode_body(located)) == located


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\3ab", bytes([MAX_KEY_BYTES + 1]) + b"x" * (MAX_KEY_BYTES + 1)])
def test_key_columns_that_do_not_decode(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_keys(data)


@pytest.mark.parametrize("keys", [[b""], [b"a", b"bc"], [b"x" * (MAX_KEY_BYTES + 1)]])
def test_keys_that_cannot_be_sent(keys: list[bytes]) -> None:
    with pytest.raises(WireError):
        pack_keys(keys)


def test_number_columns_of_odd_length() -> None:
    with pytest.raises(WireError):
        unpack_array("Q", bytes(12))
    assert unpack_array("I", bytes(12)) == array("I", [0, 0, 0])


def test_a_locate_of_many_keys_round_trips() -> None:
    message = Locate("a", [n.to_bytes(32, "big") for n in range(5000)], 10, False)
    assert decode_body("locate", encode_body(message)) == message


def envelope_code(frames: list[bytes], header: type[Any] = RequestHeader) -> str:
    with pytest.raises(WireError) as caught:
        open_envelope(frames, header)
    return caught.value.code


def test_envelopes_that_do_not_open() -> None:
    good = encode(Ping(), RequestHeader(1, 2, 3), b"t")
    for i in range(4):
        assert envelope_code(good[:i]) == ErrorCode.BAD_ENVELOPE
    for stamp in (b"", b"\1", b"\1" + b"k" * 33, b"\1\xff"):
        assert envelope_code([b"", stamp, *good[2:]]) == ErrorCode.BAD_ENVELOPE
    assert envelope_code([b"", b"\2ping", *good[2:]]) == ErrorCode.PROTOCOL_MISMATCH
    for header in (
        b"",
        b"\x93\1\2\xdb\0\0\4\0" + b"x" * 1024,
        b"\x93\1\2",
        body(1, 2),
        body(1, 2, -1),
        body(1, 2, "3"),
        body(1, 2, True),
        body(1, 2, None),
    ):
        assert envelope_code([*good[:2], header, good[3]]) == ErrorCode.BAD_ENVELOPE
    assert envelope_code(good, EventHeader) == ErrorCode.BAD_ENVELOPE


def test_an_envelope_keeps_buffers_and_ignores_more_header_fields() -> None:
    frames = [b"t", b"\1ping", body(1, 2, 3, "new"), body(), b"buffer 0", b"buffer 1"]
    envelope = open_envelope(frames, RequestHeader)
    assert envelope == Envelope(b"t", "ping", RequestHeader(1, 2, 3), body(), [b"buffer 0", b"buffer 1"])
    assert envelope.message() == Ping()
