"""A column of keys is a sequence of keys, cut or not."""

from __future__ import annotations

import pytest
from pegaflow.common.wire.columns import pack_keys
from pegaflow.common.wire.errors import WireError
from pegaflow.common.wire.key_column import KeyColumn

KEYS = [bytes([n]) * 5 for n in range(70)]


def test_it_is_the_list_of_its_keys() -> None:
    for column in (KeyColumn(pack_keys(KEYS)), KeyColumn(pack_keys(KEYS))[:]):
        assert len(column) == 70 and column == KEYS and column == KeyColumn(pack_keys(KEYS))
        assert list(column) == KEYS and column[0] == KEYS[0] and column[-1] == KEYS[-1]
        assert column != KEYS[:-1] and column != KeyColumn(pack_keys(KEYS[:-1]))
        assert repr(column) == f"KeyColumn({KEYS!r})"
        with pytest.raises(IndexError):
            column[70]


@pytest.mark.parametrize("part", [slice(3), slice(3, 40), slice(-5, None), slice(40, 3), slice(0, 70, 7), slice(None, None, -1)])
def test_slices_are_those_of_the_list(part: slice) -> None:
    column = KeyColumn(pack_keys(KEYS))
    assert column[part] == KEYS[part]
    assert pack_keys(column[part]) == pack_keys(KEYS[part])
    assert list(column) == KEYS and column[part] == KEYS[part]  # cut by now


def test_an_empty_one() -> None:
    column = KeyColumn(pack_keys([]))
    assert not column and len(column) == 0 and list(column) == [] and column[:5] == []


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\3ab", b"\xffabc"])
def test_what_is_no_column(data: bytes) -> None:
    with pytest.raises(WireError):
        KeyColumn(data)
