"""scripts/bench/catalogue: who is asked when, and what is timed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))


class Asked:
    """A client that writes down what it is asked, and answers with the times that are given: `p50` of each locate, in turns."""

    def __init__(self, name: str, told: list[tuple[str, str]], p50: tuple[float, ...] = (1.0,)) -> None:
        self._name, self._told, self._p50, self._locates = name, told, p50, 0

    def order(self, **what: Any) -> None:
        self._told.append((self._name, what["do"]))

    def answer(self) -> dict[str, Any]:
        self._locates += 1
        return {"requests": 10, "busy_s": 1.0, "p50": self._p50[(self._locates - 1) % len(self._p50)]}

    def do(self, **what: Any) -> dict[str, Any]:
        self.order(**what)
        return {}


def test_who_was_first_is_last_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = importlib.import_module("catalogue")
    monkeypatch.setattr(catalogue, "CLIENTS", (1,))
    monkeypatch.setattr(catalogue, "LOCATE_KEYS", (64,))
    told: list[tuple[str, str]] = []
    catalogue.locates({name: [Asked(name, told)] for name in ("pegaflow", "echo", "redis")}, 3, 0.1)
    names = [name for name, _ in told]
    assert names == ["pegaflow", "echo", "redis", "echo", "redis", "pegaflow", "redis", "pegaflow", "echo"]


def test_times_are_compared_within_a_round_though_the_order_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = importlib.import_module("catalogue")
    monkeypatch.setattr(catalogue, "CLIENTS", (1,))
    monkeypatch.setattr(catalogue, "LOCATE_KEYS", (512,))
    told: list[tuple[str, str]] = []
    sides = {
        "pegaflow": [Asked("pegaflow", told, (100.0, 1000.0, 100.0))],
        "redis": [Asked("redis", told, (200.0, 2000.0, 200.0))],
    }
    _, goals = catalogue.locates(sides, 3, 0.1)
    assert [(goal.name.partition(":")[0], goal.value) for goal in goals] == [
        ("locate of 512 keys, p50 us", 100.0),
        ("locate of 512 keys", 2.0),
    ]


def test_redis_is_asked_both_ways_and_no_way_finds_the_keys_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put of keys that are there already is no insert."""
    catalogue = importlib.import_module("catalogue")
    monkeypatch.setattr(catalogue, "CLIENTS", (1,))
    monkeypatch.setattr(catalogue, "CHANGE_KEYS", (64,))
    told: list[tuple[str, str]] = []
    sides = {name: [Asked(name, told)] for name in (catalogue.OURS, catalogue.BLOCKING, catalogue.PIPELINED)}
    (row,) = catalogue.changes(sides, 4096, 2)
    assert (
        [*row][2:]
        == catalogue.CHANGED
        == [
            *("pegaflow put Mkeys/s", "redis blocking put Mkeys/s", "redis pipelined put Mkeys/s"),
            *("pegaflow remove Mkeys/s", "redis blocking remove Mkeys/s", "redis pipelined remove Mkeys/s"),
        ]
    )
    turn = ["prepare", "put", "remove"]
    order = [catalogue.OURS, catalogue.BLOCKING, catalogue.PIPELINED, catalogue.BLOCKING, catalogue.PIPELINED, catalogue.OURS]
    assert told == [(name, what) for name in order for what in turn]


class Slow:
    """A catalogue that takes a second for everything, and a thousand to name the keys."""

    def __init__(self) -> None:
        self.now, self.settled = 0.0, 0

    def names(self, keys: list[bytes]) -> list[Any]:
        self.now += 1000.0
        return [key.hex() for key in keys]

    def locate(self, keys: list[Any]) -> int:
        self.now += 1.0
        return sum(isinstance(key, str) for key in keys)

    def put(self, keys: list[Any]) -> None:
        self.now += 1.0

    def settle(self) -> None:
        self.now += 1.0


def test_names_are_made_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    client, slow = importlib.import_module("catalogue_client"), Slow()
    monkeypatch.setattr(client.time, "perf_counter", lambda: slow.now)
    found = client.locate(slow, 4, 4096, 1500.0, 0)
    assert found["requests"] == 2 and found["p50"] == pytest.approx(1e6) and found["busy_s"] == pytest.approx(2.0)
    names = slow.names(client.prepared(0, 4096))
    assert client.change(slow, "put", 1024, names) == {"seconds": 4 + 1}, "and what is on its way is waited for"


def test_mooncake_that_is_not_there_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue, missing = importlib.import_module("catalogue"), importlib.import_module("private_venv").Missing

    def run(*_: object) -> None:
        raise missing("libibverbs.so.1 is missing")

    monkeypatch.setattr(catalogue.MooncakeMaster, "run", run)
    with catalogue.Machine() as machine:
        assert catalogue.beside_mooncake(machine, wanted=True) == (None, "libibverbs.so.1 is missing")
        assert catalogue.beside_mooncake(machine, wanted=False) == (None, "--no-mooncake")
