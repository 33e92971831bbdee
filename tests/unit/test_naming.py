"""Names of keys: the same one however the key comes, and spread whatever the keys look like."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pegaflow.common.wire.columns import MAX_KEY_BYTES, pack_keys
from pegaflow.common.wire.key_column import KeyColumn
from pegaflow.services.metaserver.index import FULL
from pegaflow.services.metaserver.naming import FEW, Naming
from pegaflow.services.metaserver.table import Table


@pytest.mark.parametrize("width", [1, 7, 8, 9, 32, 48, MAX_KEY_BYTES])
def test_a_key_has_one_name(width: int) -> None:
    naming = Naming()
    keys = [bytes([n]) + random.Random(n).randbytes(width - 1) for n in range(50)]
    names = naming.of(keys).tolist()
    assert names == naming.of(KeyColumn(pack_keys(keys))).tolist()
    assert names == [naming.of([key]).item(0) for key in keys]
    assert (
        names[:FEW] == naming.of(keys[:FEW]).tolist() and names[: FEW + 1] == naming.of(dict.fromkeys(keys[: FEW + 1])).tolist()
    )
    assert min(names) > 0 and len(set(names)) == len(keys)


def test_keys_of_several_widths() -> None:
    naming = Naming()
    keys = [b"x" * width for width in range(1, 20)]
    names = naming.of(keys).tolist()
    assert len(set(names)) == len(keys)
    assert names == [naming.of([key]).item(0) for key in keys]


def test_no_keys() -> None:
    assert len(Naming().of([])) == len(Naming().of(KeyColumn(b"\0"))) == 0


def test_names_are_this_process_s_own() -> None:
    keys = [random.Random(n).randbytes(48) for n in range(10)]
    assert set(Naming().of(keys).tolist()).isdisjoint(Naming().of(keys).tolist())


@pytest.mark.parametrize(
    "keys",
    [
        [random.Random(n).randbytes(48) for n in range(6500)],
        [b"prefix-of-a-key-that-counts-" + b"%04d" % n for n in range(6500)],  # differs in the upper half of one word only
        [n.to_bytes(32, "big") for n in range(6500)],
        [n.to_bytes(32, "little") for n in range(6500)],
        [n.to_bytes(16, "little") * 2 for n in range(6500)],
    ],
    ids=["hashes", "text", "big", "little", "twice"],
)
def test_names_fill_a_table(keys: list[bytes]) -> None:
    """Hashes, as real keys are, like random numbers; keys that count may spill, but no two of them share a name."""
    table = Table(1024)
    names = Naming().of(keys)
    table.insert(names, np.ones(len(keys), np.uint32))
    table.validate()
    assert len(keys) / table.slots > FULL - 0.01
    assert len(keys[0]) < 48 or table.spilled < 20
