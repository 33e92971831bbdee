"""Whatever is encoded comes back, and no bytes at all raise anything but `WireError`."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from fuzzing import ROWS, messages
from hypothesis import given, settings
from hypothesis import strategies as st
from pegaflow.common.wire.codec import decode_body, encode_body
from pegaflow.common.wire.envelope import encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.messages.operate import Ping
from wire_samples import HEADERS, MESSAGES


@pytest.mark.parametrize("cls", [type(message) for message in MESSAGES], ids=lambda cls: cls.KIND)
@settings(max_examples=15, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(KINDS, st.binary(max_size=60) | ROWS)
def test_no_body_raises_anything_but_a_wire_error(kind: str, body: bytes) -> None:
    with contextlib.suppress(WireError):
        decode_body(kind, body)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(MESSAGES)), st.data())
def test_a_spoiled_body_raises_nothing_but_a_wire_error(message: Any, data: st.DataObject) -> None:
    body = bytearray(encode_body(message))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        decode_body(message.KIND, bytes(body))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(HEADERS.values())), st.data())
def test_no_frames_raise_anything_but_a_wire_error(header: Any, data: st.DataObject) -> None:
    frames = encode(Ping(), header)
    spoiled = data.draw(st.lists(st.sampled_from(frames) | st.binary(max_size=20) | ROWS, max_size=6))
    with contextlib.suppress(WireError):
        open_envelope(spoiled, type(header)).message()
