"""What keeps the figures of scripts/bench/multiturn from meaning what they should, and how it ends."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from multiturn_runs import SHAPE, run, seen

from bench.turns.doubts import answers, doubts, restarted
from bench.turns.heard import Heard
from bench.turns.hits import Growth
from bench.turns.record import Kind, Run
from bench.turns.stand import stop_all

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def other(one: Run, session: int, turn: int, *, at: int) -> Run:
    """With another id in one answer."""
    ids = [*range(SHAPE.answer)]
    ids[at] = 99
    changed = tuple(
        dataclasses.replace(each, ids=tuple(ids)) if (each.session, each.turn) == (session, turn) else each for each in one.heard
    )
    return dataclasses.replace(one, heard=changed)


def test_the_same_prompt_has_the_same_answer() -> None:
    like = answers(run(Kind.MIXED, 0.4, 0.1), SHAPE)
    pd = run(Kind.PD, 0.4, 0.1)
    assert doubts(pd, SHAPE, like) == []
    (text,) = doubts(other(pd, 0, 0, at=7), SHAPE, like)
    assert "session 0, turn 0" in text and "from id 7 on" in text
    assert len(doubts(other(other(pd, 0, 2, at=1), 1, 1, at=1), SHAPE, like)) == 2


def test_behind_an_answer_that_differs_prompts_do_too_and_nothing_is_said() -> None:
    like = answers(run(Kind.MIXED, 0.4, 0.1), SHAPE)
    (text,) = doubts(other(other(run(Kind.PD, 0.4, 0.1), 0, 0, at=1), 0, 1, at=2), SHAPE, like)
    assert "turn 0" in text
    less = {place: ids for place, ids in like.items() if place != (0, 0)}
    assert doubts(other(run(Kind.PD, 0.4, 0.1), 0, 1, at=2), SHAPE, less) == []


def test_d_computes_no_prompt_and_nothing_is_replayed_where_everything_fits() -> None:
    like = answers(run(Kind.MIXED, 0.4, 0.1), SHAPE)
    before = {"D": seen(), "router": seen(), "tier a": seen(), "tier b": seen()}
    after = before | {"D": seen(pegaflow_prompt_positions_computed_total=5.0, pegaflow_prompt_last_positions_computed_total=2.0)}
    pd = dataclasses.replace(run(Kind.PD, 0.4, 0.1), growth=Growth(before, after))
    (text,) = doubts(pd, SHAPE, like)
    assert "D computed 3 positions" in text
    pd = run(Kind.PD, 0.4, 0.1)
    pd = dataclasses.replace(pd, heard=(dataclasses.replace(pd.heard[0], plan="replay"), *pd.heard[1:]))
    (text,) = doubts(pd, SHAPE, like)
    assert "1 requests were replayed" in text
    evicted = before | {"tier a": seen(pegaflow_tier_pages_evicted_total=4.0)}
    small = dataclasses.replace(pd, kind=Kind.SMALL, growth=Growth(before, evicted))
    assert doubts(small, SHAPE, like) == []  # what was evicted has to be computed again


def test_what_was_noticed_of_the_processes_is_a_doubt() -> None:
    one = dataclasses.replace(run(Kind.MIXED, 0.4, 0.1), noticed=tuple(restarted({"P": 7, "D": 8}, {"P": 7, "D": 9})))
    assert doubts(one, SHAPE, {}) == ["mixed, closed loop, round 1: D was started again while it was measured"]
    assert restarted({"P": 7}, {"P": 7}) == [] and len(restarted({"P": 7}, {"P": 0})) == 1


def test_all_are_stopped_though_one_of_them_fails() -> None:
    stopped: list[str] = []

    class Running:
        def __init__(self, name: str, why: Exception | None = None) -> None:
            self.name, self.why = name, why

        def stop(self) -> None:
            stopped.append(self.name)
            if self.why is not None:
                raise self.why

    with pytest.raises(OSError, match="stays"):
        stop_all([Running("a"), Running("b", OSError("stays")), Running("c")])
    assert sorted(stopped) == ["a", "b", "c"]


# The program: its modules are another package there.


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    found = importlib.import_module("multiturn")
    monkeypatch.setattr(found, "ONE_THREAD", {})
    return found


def theirs(kind: Kind, ttft: float, tpot: float) -> Any:
    """A run of the program's own classes."""
    record, heard_there = importlib.import_module("turns.record"), importlib.import_module("turns.heard")
    one = run(kind, ttft, tpot)

    def moved(all_of: tuple[Heard, ...]) -> tuple[Any, ...]:
        return tuple(
            heard_there.Heard(**{each.name: getattr(old, each.name) for each in dataclasses.fields(old)}) for old in all_of
        )

    growth = importlib.import_module("turns.hits").Growth({}, {})
    kinds = (record.Kind(one.kind), record.Arrival(one.arrival))
    return record.Run(*kinds, moved(one.heard), moved(one.first), moved(one.alone), one.seconds, one.cpu, growth, {})


def test_no_goal_is_met_by_a_run_in_doubt(program: Any) -> None:
    aims, slo = importlib.import_module("turns.aims"), importlib.import_module("turns.figures").Slo(1.0, 0.1)
    pd, mixed = theirs(Kind.PD, 0.4, 0.05), theirs(Kind.MIXED, 0.4, 0.1)
    sure, doubtful = (aims.goals([(pd, mixed)], SHAPE, slo, doubted) for doubted in (False, True))
    assert [goal.met for goal in sure] == [True, True, True]
    assert [(goal.name, goal.value, goal.met) for goal in doubtful] == [(goal.name, goal.value, False) for goal in sure]


def test_goals_are_on_the_median_of_the_rounds(program: Any) -> None:
    aims, slo = importlib.import_module("turns.aims"), importlib.import_module("turns.figures").Slo(1.0, 0.1)
    pairs = [(theirs(Kind.PD, 0.4, tpot), theirs(Kind.MIXED, 0.4, 0.1)) for tpot in (0.05, 0.09, 0.9)]
    found = {goal.name: goal for goal in aims.goals(pairs, SHAPE, slo, False)}
    assert found["TPOT p99, P/D over mixed, closed loop"].value == 0.9 and all(goal.met for goal in found.values())
    assert not all(goal.met for goal in aims.goals([*pairs, pairs[2]], SHAPE, slo, False))


def test_each_round_is_played_in_the_other_order_and_compared_within(program: Any) -> None:
    class Played:
        shape, rate = SHAPE, 0.0

        def __init__(self) -> None:
            self.runs: list[Any] = []

        def play(self, kind: Any, arrival: Any, number: int) -> None:
            one = theirs(Kind(kind), 0.4, 0.1 * number if kind == "mixed" else 0.1)
            self.runs.append(dataclasses.replace(one, arrival=arrival, round=number))

        def slo(self) -> Any:
            return importlib.import_module("turns.figures").Slo(1.0, 0.1)

        def settings(self, slo: Any, cores: Any) -> list[Any]:
            return []

    bench = Played()
    program.measure(bench, quick=False, rounds=2, rate=1.0, played=lambda: None)
    order = [str(one.kind) for one in bench.runs]
    there = ["mixed", "pd", "pd-small"]
    assert order == [*there, *reversed(there)] * 2
    assert [(str(one.arrival), one.round) for one in bench.runs[::3]] == [("closed", 1), ("closed", 2), ("open", 1), ("open", 2)]
    tables, goals, wrong = program.tables(bench, [0, 1], "")
    ratios = [row for table in tables for row in table if row.get("ratio") == "pd/mixed"]
    assert [(row["loop"], row["round"], row["tpot p99"]) for row in ratios] == [
        ("closed", 1, 1.0), ("closed", 2, 0.5), ("open", 1, 1.0), ("open", 2, 0.5),
    ]  # fmt: skip
    assert [goal.value for goal in goals if goal.name.startswith("TPOT")] == [0.75, 0.75]
    assert all("evicted nothing" in text for text in wrong)  # of pd-small, which has no counters here


@pytest.mark.parametrize("end, code", [(KeyboardInterrupt(), 130), (LookupError("a fault"), None), (None, 0)])
def test_what_was_played_is_shown_and_written_whatever_ends_it(
    program: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    end: BaseException | None,
    code: int | None,
) -> None:
    written: list[Any] = []
    out = tmp_path / "out.json"

    class Played(program.Bench):  # type: ignore[misc]
        def __init__(self, asked: Any, shape: Any, folder: Path) -> None:
            self._asked, self.shape, self.name, self._page, self._kv_gib = asked, shape, "tiny", 1 << 20, 1
            self.runs: list[Any] = []
            self.rate = 0.0

        def preflight(self) -> None: ...

        def play(self, kind: Any, arrival: Any, number: int) -> None:
            if self.runs:
                written.append(json.loads(out.read_text()))
                if end is not None:
                    raise end
            self.runs.append(theirs(Kind(kind), 0.4, 0.1))

    sizes = {"sessions": SHAPE.sessions, "turns": SHAPE.turns}
    monkeypatch.setattr(program, "QUICK", sizes)
    monkeypatch.setattr(program, "Bench", Played)
    monkeypatch.setattr(sys, "argv", ["multiturn", "--quick", "--json", str(out)])
    if code is None:
        with pytest.raises(LookupError, match="a fault"):
            program.main()
    else:
        assert program.main() == code
    doubt = [row["doubt"] for row in written[0]["rows"] if "doubt" in row]
    assert doubt == ["the benchmark has not ended: this is what was played until now"]
    rows = json.loads(out.read_text())["rows"]
    assert [row for row in rows if "same answers" in row] and "same answers" in capsys.readouterr().out
    assert any("the rest was not measured" in row.get("doubt", "") for row in rows) == (end is not None)


@pytest.mark.parametrize("met, wrong, code", [(True, [], 0), (False, [], 3), (False, ["the tiers evicted nothing"], 1)])
def test_a_missed_goal_and_a_doubt_end_it_otherwise(
    program: Any, monkeypatch: pytest.MonkeyPatch, met: bool, wrong: list[str], code: int
) -> None:
    goal = importlib.import_module("report").Goal("tpot p99", 1.2, "<= 1.0", met)

    class Played(program.Bench):  # type: ignore[misc]
        def __init__(self, *_: Any) -> None:
            self.runs: list[Any] = [None]

        def preflight(self) -> None: ...

    monkeypatch.setattr(program, "Bench", Played)
    monkeypatch.setattr(program, "measure", lambda *_, **__: None)
    monkeypatch.setattr(program, "draw", lambda *_: None)
    monkeypatch.setattr(program, "tables", lambda *_: ([[{"kind": "mixed"}]], [goal], wrong))
    monkeypatch.setattr(sys, "argv", ["multiturn", "--quick"])
    assert program.main() == code
