"""What a tier tells routers of its engines."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import Attach, SessionList
from pegaflow.services.tier.sessions import Sessions

FACTORS = {"block_size": "16", "hash_block_size": "8", "hash_algorithm": "sha256_cbor", "none_hash": "00ff", "model": "m"}
F = b"f" * 16
PLAIN: dict[str, Any] = {
    "protocol": 1,
    "package": "test",
    "rank": 0,
    "shard": 0,
    "shards": 1,
    "stripe": 0,
    "stripes": 1,
    "base": b"b" * 16,
    "layouts": b"l" * 16,
    "page_bytes": u32s([4096]),
    "mode": "",
    "pid": 1,
    "lock_name": "0" * 32,
    "first_seq": 1,
}


def listed(*engines: tuple[str, str, dict[str, str]]) -> SessionList:
    """Of engines by name, role and factors."""
    numbers = itertools.count(1)
    sessions = Sessions(lambda n: bytes([n % 256]), lambda n: next(numbers).to_bytes(n, "little"))
    for name, role, factors in engines:
        fields: dict[str, Any] = {
            "engine": name,
            "role": role,
            "fingerprint": F if role == "scheduler" else b"",
            "factors": [f"{key}={value}" for key, value in factors.items()],
            "nonce": name.encode().ljust(16, b"-"),
        }
        sessions.attach(Attach(**PLAIN | fields), 0.0)
    answer = sessions.listed()
    assert answer.check() is None
    return answer


def test_engines_say_how_they_name_pages() -> None:
    answer = listed(("a", "scheduler", FACTORS), ("b", "rank", {}), ("c", "scheduler", FACTORS | {"block_size": "32"}))
    assert (list(answer.engines), answer.fingerprints) == (["a", "c"], F + F)
    assert (list(answer.block_sizes), list(answer.hash_block_sizes)) == ([16, 32], [8, 8])
    assert (list(answer.algorithms), list(answer.none_hashes)) == (["sha256_cbor"] * 2, ["00ff"] * 2)


@pytest.mark.parametrize("name", ["block_size", "hash_block_size", "hash_algorithm", "none_hash"])
def test_one_whose_factors_are_others_is_left_out(name: str) -> None:
    odd = [{key: value for key, value in FACTORS.items() if key != name}, FACTORS | {name: "-1"}, FACTORS | {name: "0g"}]
    for factors in odd[: 1 if name == "hash_algorithm" else 3]:
        assert list(listed(("a", "scheduler", factors)).engines) == []
