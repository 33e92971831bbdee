"""Whatever is encoded comes back, and no bytes at all raise anything but `WireError`."""

from __future__ import annotations

import contextlib
import dataclasses
from array import array
from typing import Any, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.common.wire.codec import decode_body, encode_body
from pegaflow.common.wire.envelope import encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.messages.operate import Ping
from wire_samples import HEADERS, MESSAGES

U32, U64, I64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(0, 4) | U64  # small ones often, so that columns fit counts


def column(tag: str, n: int) -> st.SearchStrategy[Any]:
    """A field's values; the columns of one message have `n` rows, so that most messages pass their own check."""
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "keys": st.lists(st.binary(min_size=20, max_size=20), min_size=n, max_size=n),
        "u32": st.lists(st.integers(0, max(0, n - 1)) | U32, min_size=n, max_size=n).map(lambda values: array("I", values)),
        "u64": st.lists(U64, min_size=n, max_size=n).map(lambda values: array("Q", values)),
        "strs": st.lists(st.text(max_size=5), min_size=n, max_size=n),
        "int": st.just(1) | SMALL,
        "signed": st.just(-1) | I64,
        "str": st.sampled_from(["scheduler", "rank"]) | st.text(max_size=9),
        "bytes": st.sampled_from([n, 8 * n, 16 * n, 16]).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
        "bool": st.booleans(),
    }
    return strategies[tag]


@st.composite
def messages(draw: st.DrawFn, cls: type[Any]) -> Any:
    hints = get_type_hints(cls, include_extras=True)
    n = draw(st.integers(0, 3))
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: draw(column(hints[name].__metadata__[0], n)) for name in names})


@pytest.mark.parametrize("cls", [type(message) for message in MESSAGES], ids=lambda cls: cls.KIND)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_encoded_comes_back_or_is_refused_by_its_own_check(cls: type[Any], data: st.DataObject) -> None:
    message = data.draw(messages(cls))
    body = encode_body(message)
    if getattr(message, "check", lambda: None)() is None:
        assert decode_body(cls.KIND, body) == message
    else:
        with pytest.raises(WireError) as caught:
            decode_body(cls.KIND, body)
        assert caught.value.code == ErrorCode.BAD_MESSAGE


KINDS = st.sampled_from([message.KIND for message in MESSAGES]) | st.text(max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | U64 | I64 | st.floats() | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
ROWS = st.lists(VALUES, max_size=20).map(lambda row: bytes(msgpack.packb(row, use_bin_type=True)))


@settings(max_examples=200, deadline=None)
@given(KINDS, st.binary(max_size=60) | ROWS)
def test_no_body_raises_anything_but_a_wire_error(kind: str, body: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_body(kind, body)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(MESSAGES)), st.data())
def test_a_spoiled_body_raises_nothing_but_a_wire_error(message: Any, data: st.DataObject) -> None:
    body = bytearray(encode_body(message))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode_body(message.KIND, bytes(body))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(HEADERS.values())), st.data())
def test_no_frames_raise_anything_but_a_wire_error(header: Any, data: st.DataObject) -> None:
    frames = encode(Ping(), header)
    spoiled = data.draw(st.lists(st.sampled_from(frames) | st.binary(max_size=20) | ROWS, max_size=6))
    with contextlib.suppress(WireError):
        open_envelope(spoiled, type(header)).message()
