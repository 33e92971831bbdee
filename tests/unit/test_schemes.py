"""How a router learns to name pages, and where engines are."""

from __future__ import annotations

import pytest
from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import BlockHash, HashAlgorithm, block_hash, key, none_hash
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import SessionList
from pegaflow.services.router.schemes import MAX_IDS, names, place, schemes

F, G = b"f" * 16, b"g" * 16
NONE = none_hash(HashAlgorithm.SHA256_CBOR)


def test_a_key_is_the_hash_that_ends_at_the_pages_end() -> None:
    scheme = KeyScheme(F, 4, 2, HashAlgorithm.SHA256_CBOR, NONE)
    hashes = [NONE]
    for at in range(0, 10, 2):
        hashes.append(block_hash(scheme.algorithm, hashes[-1], list(range(at, at + 2))))
    assert scheme.keys(list(range(11))) == [key(F, hashes[2]), key(F, hashes[4])]
    assert scheme.keys([1, 2, 3]) == []


def test_a_long_prompt_is_judged_by_its_beginning() -> None:
    scheme = KeyScheme(F, 16, 16, HashAlgorithm.SHA256_CBOR, NONE)
    ids = list(range(MAX_IDS + 160))
    assert names(scheme, ids) == scheme.keys(ids[:MAX_IDS])
    assert len(names(scheme, ids)) == MAX_IDS // 16


def test_the_tail_continues_the_last_full_block() -> None:
    scheme = KeyScheme(F, 4, 2, HashAlgorithm.SHA256_CBOR, NONE)
    ids = list(range(11))
    assert scheme.tail(ids[:8]) is None
    parent = scheme.keys(ids)[-1][16:]
    assert scheme.tail(ids) == key(F, block_hash(scheme.algorithm, BlockHash(parent), ids[8:]))
    assert scheme.tail(ids[:3]) == key(F, block_hash(scheme.algorithm, NONE, ids[:3]))


def test_what_cannot_be_computed_is_left_out() -> None:
    listed = SessionList(
        ["a", "b", "c", "d"],
        F + G + F + F,
        u32s([16, 16, 16, 16]),
        u32s([16, 16, 12, 0]),
        ["sha256_cbor", "sha256/pickle5", "sha256_cbor", "sha256_cbor"],
        [NONE.hex()] * 4,
    )
    assert schemes(listed) == {KeyScheme(F, 16, 16, HashAlgorithm.SHA256_CBOR, NONE)}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ((["a"], b"", u32s([1]), u32s([1]), ["x"], ["00"]), "columns of different lengths"),
        ((["a"], F, u32s([1]), u32s([1]), ["x"], []), "columns of different lengths"),
        ((["a"], F, u32s([1]), u32s([1]), ["x"], ["0"]), "hexadecimal"),
        ((["a"], F, u32s([1]), u32s([1]), ["x"], ["zz"]), "hexadecimal"),
    ],
)
def test_a_list_that_cannot_be_one(fields: tuple[object, ...], text: str) -> None:
    complaint = SessionList(*fields).check()  # type: ignore[arg-type]
    assert complaint is not None and text in complaint


def test_where_an_engine_is() -> None:
    nodes = {"a": "tcp://10.0.0.1:7410", "b": "tcp://10.0.0.2:7410", "c": "tcp://10.0.0.2:7510", "d": ""}
    engines = ["http://10.0.0.1:8200", "http://10.0.0.2:8200", "http://10.0.0.2:8300", "http://elsewhere:1"]
    assert place(engines, nodes, {"http://10.0.0.2:8300": "c"}) == {engines[0]: "a", engines[2]: "c"}, (
        "two on a host: not guessed"
    )
