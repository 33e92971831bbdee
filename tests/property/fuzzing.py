"""Strategies for messages, valid and spoiled, of every kind."""

from __future__ import annotations

import dataclasses
from array import array
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import msgpack
from hypothesis import strategies as st
from pegaflow.common.wire.codec import encode_body
from wire_samples import MESSAGES

U32, U64, I64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(0, 4) | U64  # small ones often, so that columns fit counts
SAMPLES = {message.KIND: message for message in MESSAGES}
CORPUS = Path(__file__).parents[1] / "corpus"
"""Bodies that once did harm, or were made to: `<kind>-<what>.hex`. A case that the fuzzer finds is kept here."""


@cache
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


VALUES = st.recursive(
    st.none() | st.booleans() | U64 | I64 | st.floats() | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)
ROWS = st.lists(VALUES, max_size=20).map(lambda row: bytes(msgpack.packb(row, use_bin_type=True)))


@st.composite
def bodies(draw: st.DrawFn, kind: str) -> bytes:
    """A body of this kind: valid, with fields of another value or type, with bytes changed, cut or put in, or mere bytes."""
    sample = SAMPLES[kind]
    how = draw(st.sampled_from(("valid", "fields", "bytes", "cut", "noise")))
    if how == "valid":
        return encode_body(draw(messages(type(sample))))
    if how == "noise":
        return draw(st.binary(max_size=60) | ROWS)
    body = bytearray(encode_body(sample))
    if how == "fields":
        row = msgpack.unpackb(bytes(body))
        for _ in range(draw(st.integers(1, 3)) if row else 0):
            at = draw(st.integers(0, len(row) - 1))
            row[at] = draw(VALUES | st.sampled_from(row))
        return bytes(msgpack.packb(row, use_bin_type=True))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body) - 1)) if body else 0
        if how == "cut":
            del body[at : at + draw(st.integers(1, 5))]
        elif body:
            body[at] = draw(st.integers(0, 255))
    if how == "cut":
        at = draw(st.integers(0, len(body)))
        body[at:at] = draw(st.binary(max_size=5))
    return bytes(body)
