"""What keeps the figures of scripts/bench/multiturn from meaning what they should, and how it ends."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from multiturn_runs import SHAPE, run, seen, steady

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


def test_a_cache_that_does_not_hold_what_runs_is_a_doubt() -> None:
    growth = Growth({"P": seen(), "tier a": seen()}, {"P": seen(vllm_num_preemptions_total=3.0), "tier a": seen()})
    (text,) = doubts(dataclasses.replace(run(Kind.PD, 0.4, 0.1), growth=growth), SHAPE, answers(run(Kind.MIXED, 0.4, 0.1), SHAPE))
    assert "3 requests were preempted" in text


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


def of_rounds(*tpots: float, kind: Kind = Kind.MIXED) -> list[Any]:
    """P/D and mixed, whose time per token is 0.1."""
    return [(theirs(Kind.PD, 0.4, tpot), theirs(kind, 0.4, 0.1)) for tpot in tpots]


def test_a_goal_is_on_the_median_of_the_rounds_and_met_if_each_of_them_meets_it(program: Any) -> None:
    aims, slo = importlib.import_module("turns.aims"), importlib.import_module("turns.figures").Slo(1.0, 0.1)

    def tpot(*tpots: float) -> tuple[float, str, bool]:
        found = {goal.name: goal for goal in aims.goals(of_rounds(*tpots), SHAPE, slo, False)}
        goal = found["TPOT p99, P/D over mixed, closed loop"]
        assert found["throughput, P/D over mixed, closed loop"].met
        return goal.value, goal.goal, goal.met

    assert tpot(0.05, 0.09, 0.08) == (0.8, "<= 1.0 (3 rounds, 0.500 to 0.900)", True)
    assert tpot(0.05, 0.08, 0.9) == (0.8, "<= 1.0 (3 rounds, 0.500 to 9.000: not decided)", False)
    assert tpot(0.05, 0.2, 0.9) == (2.0, "<= 1.0 (3 rounds, 0.500 to 9.000: not decided)", False)
    assert tpot(0.3, 0.2) == (2.5, "<= 1.0 (2 rounds, 2.000 to 3.000)", False)
    assert tpot(0.05) == (0.5, "<= 1.0 (one run)", True)
    rows = {row["beside the goals"]: row for row in aims.beside(of_rounds(0.05, 0.2, kind=Kind.CHUNKED), SHAPE, slo)}
    row = rows["TPOT p99, P/D over mixed-chunked, closed loop"]
    assert [round(row[name], 6) for name in ("median", "lowest", "highest", "rounds")] == [1.25, 0.5, 2.0, 2]


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
    kinds = list(importlib.import_module("turns.record").Kind)
    program.measure(bench, kinds, quick=False, rounds=2, rate=1.0, played=lambda: None)
    order = [str(one.kind) for one in bench.runs]
    there = ["mixed", "mixed-chunked", "pd", "pd-small"]
    assert order == [*there, *reversed(there)] * 2
    assert [(str(one.arrival), one.round) for one in bench.runs[::4]] == [("closed", 1), ("closed", 2), ("open", 1), ("open", 2)]
    tables, goals, wrong = program.tables(bench, [0, 1], "")
    rows = [row for table in tables for row in table]
    assert [(row["loop"], row["round"], row["tpot p99"]) for row in rows if row.get("ratio") == "pd/mixed"] == [
        ("closed", 1, 1.0), ("closed", 2, 0.5), ("open", 1, 1.0), ("open", 2, 0.5),
    ]  # fmt: skip
    assert {row["ratio"] for row in rows if "ratio" in row} == {
        f"{ours}/{mixed}" for ours in there[1:] for mixed in there[:2] if ours != mixed
    }
    assert [goal.value for goal in goals if goal.name.startswith("TPOT")] == [0.75, 0.75]
    assert not any("chunked" in goal.name for goal in goals), "its engines have another flag"
    assert [(row["beside the goals"], row["rounds"]) for row in rows if "beside the goals" in row] == [
        (f"{what}, P/D over mixed-chunked, {loop} loop", 2)
        for loop, judged in (("closed", ("TPOT p99", "ITL p99", "throughput")), ("open", ("TPOT p99", "ITL p99")))
        for what in judged
    ]
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


@pytest.mark.parametrize(
    "options, played",
    [
        ("", "mixed mixed-chunked pd pd-small"),
        ("--quick", "mixed pd"),
        ("--configuration pd --configuration mixed-chunked", "mixed-chunked pd"),
        ("--quick --configuration pd --configuration mixed --configuration mixed-chunked", "mixed mixed-chunked pd"),
        ("--configuration mixed --configuration mixed-chunked", ""),
        ("--configuration pd --configuration pd-small", ""),
    ],
)
def test_configurations_are_chosen_so_that_there_are_ratios(
    program: Any, monkeypatch: pytest.MonkeyPatch, options: str, played: str
) -> None:
    asked: list[str] = []

    class Nothing:
        runs: tuple[()] = ()

        def __init__(self, *_: object) -> None: ...

        def preflight(self) -> None: ...

    monkeypatch.setattr(program, "Bench", Nothing)
    monkeypatch.setattr(program, "measure", lambda bench, kinds, **_: asked.extend(kinds))
    monkeypatch.setattr(sys, "argv", ["multiturn", *options.split()])
    if played:
        program.main()
    else:
        with pytest.raises(SystemExit):
            program.main()
    assert asked == played.split()


def flags(program: Any, monkeypatch: pytest.MonkeyPatch, kind: Kind, folder: Path) -> dict[str, Any]:
    """What engines of this configuration are started with."""
    found: list[dict[str, Any]] = []

    class Started(Exception): ...

    def stand(kind: Any, folder: Path, options: dict[str, Any]) -> Any:
        found.append(options)
        raise Started

    monkeypatch.setattr(program, "Stand", stand)
    bench = object.__new__(program.Bench)
    bench.shape, bench.runs, bench.name = SHAPE, [], "tiny"
    bench._asked, bench._folder, bench._model = argparse.Namespace(engine="--max-num-batched-tokens 512"), folder, folder
    bench._page, bench._kv_gib = 1 << 20, 1
    record = importlib.import_module("turns.record")
    with pytest.raises(Started):
        bench.play(record.Kind(kind), record.Arrival.CLOSED, 1)
    return found[0]


def test_what_engines_differ_in(program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mixed, chunked, pd, small = (flags(program, monkeypatch, kind, tmp_path) for kind in Kind)
    assert mixed == pd
    assert chunked == mixed | {"engine": f"{mixed['engine']} --max-num-batched-tokens 256"}, "the last one counts"
    assert small == pd | {"pool_size": small["pool_size"], "p": "--num-gpu-blocks-override 65"}
    assert int(small["pool_size"]) < int(pd["pool_size"])


@pytest.mark.parametrize("urls", [1, 2])
def test_each_url_is_as_warm_and_the_first_one_is_looked_at(program: Any, monkeypatch: pytest.MonkeyPatch, urls: int) -> None:
    played, shape = importlib.import_module("turns.run"), importlib.import_module("turns.shape").Shape(*SHAPE)
    asked: list[int] = []

    class Client:
        def __init__(self, *_: object) -> None: ...

        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def ask(self, session: int, turn: int, prompt: Any) -> Heard:
            asked.append(session % urls)
            return steady(0.1 * (session + 1), 0.1, session=session)

        async def converse(self, workload: Any, times: Any) -> list[Heard]:
            return list(run(Kind.MIXED, 0.4, 0.1).heard)

    class Stand:
        kind, uncounted = "mixed", ()

        def __init__(self) -> None:
            self.urls = [f"http://{number}" for number in range(urls)]
            self.settled_for: list[int] = []

        def settled(self, before: Any, requests: int) -> Any:
            self.settled_for.append(requests)
            return {}

        def seen(self) -> Any:
            return {}

        pids = cpu = left = seen

    class Workload:
        def __init__(self) -> None:
            self.shape = shape

        def spare(self) -> list[int]:
            return [1]

    monkeypatch.setattr(played, "Client", Client)
    stand = Stand()
    one = played.one_run(stand, Workload(), "tiny", importlib.import_module("turns.record").Arrival.CLOSED, None, 3, 1)
    assert [asked.count(url) for url in range(urls)] == [4] * urls
    assert stand.settled_for == [4 * urls, SHAPE.requests]
    assert [each.ttft for each in one.good_alone(SHAPE.answer)] == [0.1] * 3
