"""The arithmetic of scripts/bench/peers: ratios within rounds, sides that fail half-way, rows."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench import layered_venv
from bench.engines.found import Found, Place, Run, Twice
from bench.engines.rows import OURS, PLAIN, run_rows, stage_rows, twice_rows

PEER = "lmcache"
BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def twice(cold: float, warm: float, *, ids: int = 1024, computed: int = 1, **stages: float) -> Twice:
    return Twice(ids, cold, warm, computed, stages)


def test_a_slow_round_moves_no_ratio() -> None:
    found = Found()
    for turn, slow in enumerate((1.0, 3.0)):
        found.add_twice(OURS, Place(0, turn), twice(1000 * slow, 50 * slow))
        found.add_twice(PEER, Place(0, turn), twice(1000 * slow, 200 * slow))
    assert found.warm_over_cold(OURS, 1024)[:3] == (0.05, 0.05, 0.05)
    assert found.against(PEER, OURS, 1024, lambda each: each.warm).median == 4.0


def test_a_side_is_compared_in_the_rounds_that_it_was_there_for() -> None:
    """It failed after its first round; the second one was slow for everybody else."""
    found = Found()
    for turn, rate in enumerate((100.0, 10.0)):
        found.add_run(PLAIN, Place(0, turn), Run(rate, rate, rate))
    found.add_run(PEER, Place(0, 0), Run(90.0, 80.0, 70.0))
    spread = found.runs_against(PEER, PLAIN, lambda run: run.rate)
    assert (spread.median, spread.pairs) == (0.9, 1)
    assert found.run_ratios(PEER, PLAIN, lambda run: run.per_cpu) == [0.7]
    with pytest.raises(ValueError, match="percentile of nothing"):
        found.runs_against(PEER, PLAIN, lambda run: run.rate, start=1)


def test_rows_leave_out_what_is_not_there() -> None:
    found = Found()
    found.add_twice(PLAIN, Place(0, 0), twice(1000.0, 20.0))
    found.add_twice(PEER, Place(0, 0), twice(1100.0, 220.0, computed=256, lookup=10.0, load=190.0))
    rows = twice_rows(found, (PLAIN, OURS, PEER), (1024, 4096))
    assert [(row["store"], row["warm/cold"], row["cold/plain"], row["warm/ours"]) for row in rows] == [
        (PLAIN, 0.02, 1.0, ""),
        (PEER, 0.2, 1.1, ""),
    ]
    assert rows[1]["computed"] == 256
    (stages,) = stage_rows(found, (PLAIN, PEER), (1024,))
    assert (stages["store"], stages["lookup"], stages["load"]) == (PEER, 10.0, 190.0)


def test_each_start_has_its_row() -> None:
    """Where an engine's memory lies is drawn at its start, so starts differ for as long as they live."""
    found = Found()
    for start, ours in enumerate((99.0, 97.0)):
        found.add_run(PLAIN, Place(start, 0), Run(100.0, 100.0, 100.0))
        found.add_run(OURS, Place(start, 0), Run(ours, 100.0, 50.0))
    rows = {(row["no hit"], row["store"]): row for row in run_rows(found, (PLAIN, OURS, PEER), starts=2)}
    assert rows["ids/s", OURS]["/plain"] == pytest.approx(0.98)
    assert rows["ids/s, start 1", OURS]["/plain"] == 0.99
    assert rows["ids/s, start 2", OURS]["/plain"] == 0.97
    assert rows["ids per CPU second of everything", OURS]["/plain"] == 0.5
    assert rows["ids/s", PLAIN]["/ours"] == pytest.approx((100 / 99 + 100 / 97) / 2)
    assert not [place for place in rows if place[1] == PEER]


def test_layers_are_found_in_their_order_behind_what_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layered_venv, "CACHE", tmp_path)
    layers = [tmp_path / "first", tmp_path / "second"]
    modules = {"first": ("both", "msgpack"), "second": ("both", "only_second")}
    for layer in layers:
        layer.mkdir()
        for module in modules[layer.name]:
            (layer / f"{module}.py").write_text(f"WHERE = {layer.name!r}")
    python = layered_venv.layered_venv("engine", *layers)
    code = "import both, only_second, msgpack; print(both.WHERE, only_second.WHERE, hasattr(msgpack, 'WHERE'))"
    for _ in range(2):  # made, and found again
        assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split() == [
            "first",
            "second",
            "False",
        ]
        assert layered_venv.layered_venv("engine", *layers) == python


def test_the_warm_goal_is_over_the_cold_time_of_plain_vllm_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold time of ours that is four times as long makes nothing better."""
    monkeypatch.syspath_prepend(str(BENCH))
    theirs, aims = importlib.import_module("engines.found"), importlib.import_module("stores.aims")
    found = theirs.Found()
    for turn, slow in enumerate((1.0, 3.0)):
        found.add_twice(OURS, theirs.Place(0, turn), theirs.Twice(4096, 4000 * slow, 200 * slow, 1, {}))
        if turn == 0:
            assert aims.goals(found, 4096) == [], "without plain vLLM there is nothing to be measured by"
        found.add_twice(PLAIN, theirs.Place(0, turn), theirs.Twice(4096, 1000 * slow, 10 * slow, 1, {}))
    (goal,) = aims.goals(found, 4096)
    assert goal.value == 0.2 and not goal.met


def test_what_is_forgotten_has_no_ratio_and_the_rest_stays() -> None:
    found = Found()
    for turn in range(2):
        for side in (PLAIN, OURS):
            found.add_twice(side, Place(0, turn), twice(1000.0, 50.0))
            found.add_run(side, Place(0, turn), Run(100.0, 100.0, 100.0))
    found.forget(OURS, Place(0, 1), twice=True)
    assert [len(found.twice(side, 1024)) for side in (PLAIN, OURS)] == [2, 1] and len(found.runs(OURS)) == 2
    assert found.against(OURS, PLAIN, 1024, lambda each: each.warm).pairs == 1
    found.forget(OURS, Place(0, 0), twice=False)
    assert found.runs_against(OURS, PLAIN, lambda run: run.rate).pairs == 1


# Sides that fail.


class Held:
    """A side without processes. `runs`: CPU that it takes though it is held."""

    def __init__(self, name: str, runs: float = 0.0) -> None:
        self.name, self.runs, self.seconds = name, runs, 0.0
        self.held = self.let_gone = 0

    def cpu(self) -> dict[str, float]:
        self.seconds += self.runs
        return {"thread": self.seconds}

    def let_go(self) -> None:
        self.let_gone += 1

    def hold(self) -> None:
        self.held += 1


def alive(monkeypatch: pytest.MonkeyPatch, folder: Path, *sides: Held) -> tuple[Any, Any, dict[str, str]]:
    monkeypatch.syspath_prepend(str(BENCH))
    module, missing = importlib.import_module("stores.alive"), dict[str, str]()
    found = module.Alive(folder, 1 << 30, {}, missing)
    found._sides = {side.name: side for side in sides}
    found._ends = {side.name: ExitStack() for side in sides}
    return module, found, missing


def test_who_ran_though_it_was_held_is_out_and_not_who_was_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, found, missing = alive(monkeypatch, tmp_path, Held(PLAIN), Held(OURS), Held(PEER, runs=0.5))
    asked: list[str] = []
    found.turn(OURS, lambda side: asked.append(side.name), lambda: asked.append("spoiled"))
    assert asked == [OURS, "spoiled"] and found.names == [PLAIN, OURS]
    found.turn(OURS, lambda side: asked.append(side.name), lambda: asked.append("spoiled"))
    assert asked == [OURS, "spoiled", OURS]
    assert missing == {PEER: "used 0.500 s of CPU while it was held"}


def test_ours_or_plain_that_fails_ends_the_run_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, found, missing = alive(monkeypatch, tmp_path, Held(PLAIN), Held(OURS), Held(PEER))

    def fails(_: Any) -> None:
        raise ValueError("not enough values")

    found.turn(PEER, fails)
    assert missing == {PEER: "ValueError: not enough values"} and found.names == [PLAIN, OURS]
    with pytest.raises(module.Ended, match="pegaflow: ValueError"):
        found.turn(OURS, fails)
    assert missing[OURS] == "ValueError: not enough values"


@pytest.mark.parametrize(
    "warm, left_out, code", [(50.0, None, 0), (500.0, None, 3), (50.0, "mooncake", 3), (50.0, "offloading", 0)]
)
def test_a_goal_or_a_peer_that_is_missing_is_no_success(
    monkeypatch: pytest.MonkeyPatch, warm: float, left_out: str | None, code: int
) -> None:
    """Offloading starts on few machines."""
    monkeypatch.syspath_prepend(str(BENCH))
    peers, theirs = (importlib.import_module(name) for name in ("peers", "engines.found"))

    def one_start(start: int, alive: Any, scale: Any, parts: Any, prompts: Any, found: Any, done: Any) -> None:
        for side in (PLAIN, OURS):
            found.add_twice(side, theirs.Place(start, 0), theirs.Twice(4096, 1000.0, warm, 1, {}))
        if left_out is not None:
            alive._failed(left_out, "cannot be had")

    monkeypatch.setattr(peers, "one_start", one_start)
    monkeypatch.setattr(peers, "_room", lambda sides, size: None)
    monkeypatch.setattr(peers.Alive, "start", lambda self, names: None)
    monkeypatch.setattr(peers.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "argv", ["peers", "--quick"])
    assert peers.main() == code


def test_who_saves_late_loses_that_round_and_is_out_after_three_in_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, found, missing = alive(monkeypatch, tmp_path, Held(PLAIN), Held(OURS), Held(PEER))
    asked = importlib.import_module("stores.asked")
    dropped: list[bool] = []

    def late(_: Any) -> None:
        raise asked.Late("had not saved enough")

    def turns(*asks: Any) -> list[bool]:
        return [found.turn(PEER, ask, lambda: dropped.append(False), lambda: dropped.append(True)) for ask in asks]

    held = found._sides[PEER]
    assert turns(late, late, lambda side: None, late, late) == [True, True, False, True, True]
    assert dropped == [True] * 4 and missing == {} and held.held == held.let_gone == 5, "it is held again each time"
    assert turns(late, late) == [False, False], "it is not there any longer"
    assert missing == {PEER: "3 times in a row: had not saved enough"} and found.names == [PLAIN, OURS]
    assert len(dropped) == 5


def test_only_a_store_can_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    asked, side = importlib.import_module("stores.asked"), importlib.import_module("engines.side")

    class Counted:
        name = PEER

        def __init__(self, with_connector: bool) -> None:
            self.with_connector = with_connector

    def check(*came: int, with_connector: bool = True) -> type[Exception] | None:
        try:
            asked._check(Counted(with_connector), asked.Sources(*came), 1024)
        except side.SideFailed as why:
            return type(why)
        return None

    assert check(1024 - asked.CHUNK, 0, asked.CHUNK) is None
    assert check(512, 0, 512) is asked.Late
    assert check(512, 32, 480) is side.SideFailed, "some of it came from the engine's own cache"
    assert check(0, 512, 512, with_connector=False) is side.SideFailed
    assert check(0, 1023, 1, with_connector=False) is None


def test_rounds_that_were_dropped_are_counted() -> None:
    found = Found()
    for turn in range(2):
        for side in (PLAIN, PEER):
            found.add_twice(side, Place(0, turn), twice(1000.0, 50.0))
            found.add_run(side, Place(0, turn), Run(100.0, 100.0, 100.0))
    found.drop(PEER, Place(0, 1), twice=True)
    for turn in range(2):
        found.drop(PEER, Place(0, turn), twice=False)
    rows = twice_rows(found, (PLAIN, PEER), (1024,))
    assert [(row["store"], row["n"], row["late"]) for row in rows] == [(PLAIN, 2, 0), (PEER, 1, 1)]
    rows = [row for row in run_rows(found, (PLAIN, PEER), starts=2) if row["no hit"] == "ids/s"]
    assert [(row["store"], row["pairs"], row["late"]) for row in rows] == [(PLAIN, 2, 0), (PEER, 0, 2)]


@pytest.mark.parametrize("why, code", [("ended", 1), ("interrupted", 130), ("fault", None)])
def test_what_was_found_is_shown_and_written_whatever_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, why: str, code: int | None
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    peers, theirs = (importlib.import_module(name) for name in ("peers", "engines.found"))
    ends = {"ended": peers.Ended("pegaflow: gone"), "interrupted": KeyboardInterrupt(), "fault": LookupError("a fault")}
    out = tmp_path / "out.json"

    def one_start(start: int, alive: Any, scale: Any, parts: Any, prompts: Any, found: Any, done: Any) -> None:
        for side in (PLAIN, OURS):
            found.add_twice(side, theirs.Place(start, 0), theirs.Twice(4096, 1000.0, 50.0, 1, {}))
        done()
        assert [row["ttft"] for row in json.loads(out.read_text())["rows"] if "ttft" in row] == ["4096 ids"] * 2
        raise ends[why]

    monkeypatch.setattr(peers, "one_start", one_start)
    monkeypatch.setattr(peers, "_room", lambda sides, size: None)
    monkeypatch.setattr(peers.Alive, "start", lambda self, names: None)
    monkeypatch.setattr(peers.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "argv", ["peers", "--quick", "--json", str(out)])
    if code is None:
        with pytest.raises(LookupError, match="a fault"):
            peers.main()
    else:
        assert peers.main() == code
    document = json.loads(out.read_text())
    (doubt,) = (row["doubt"] for row in document["rows"] if "doubt" in row)
    assert [row for row in document["rows"] if "left out" in row] == [{"left out": "offloading", "because": "--quick"}]
    assert "the rest was not measured" in doubt and "4096 ids" in capsys.readouterr().out
    assert [goal["met"] for goal in document["goals"]] == [True]
