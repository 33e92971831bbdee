"""The pure parts of scripts/bench/handoff and versus: stages of a handoff, and ratios of two checkouts."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.handoffs.timeline import STAGES, Handoff, handoff, row, series
from bench.pairs.checkouts import about, differing, foreign, sources
from bench.pairs.ratios import OtherShape, ratios, said_against, skipped

MOMENTS = {"added": 10.005, "claimed": 10.008, "received": 10.018, "scheduled": 10.019, "first": 10.049}


def test_the_handoff_ends_where_the_first_decode_step_begins() -> None:
    seen = handoff(10.0, MOMENTS, 10.055)
    assert [round(stage, 6) for stage in seen.stages] == [0.005, 0.003, 0.010, 0.001, 0.030, 0.006]
    assert math.isclose(seen.to_step, 0.019) and math.isclose(seen.to_client, 0.055)


@pytest.mark.parametrize("name", MOMENTS)
def test_a_request_that_was_not_loaded_is_no_handoff(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        handoff(10.0, {moment: at for moment, at in MOMENTS.items() if moment != name}, 10.055)


@pytest.mark.parametrize("answered, heard", [(10.006, 10.055), (10.0, 10.048)])
def test_moments_out_of_order_are_no_figures(answered: float, heard: float) -> None:
    with pytest.raises(ValueError, match="not in order"):
        handoff(answered, MOMENTS, heard)


def test_a_row_has_milliseconds() -> None:
    found = row(
        1000, 32, [Handoff((0.001, 0.002, 0.003, 0.004, 0.030, 0.005)), Handoff((0.003, 0.002, 0.003, 0.004, 0.030, 0.005))]
    )
    assert found["prompt"] == 1000 and found["pages"] == 32 and found["n"] == 2
    assert [round(found[name]) for name in STAGES] == [2, 2, 3, 4, 30, 5]
    assert round(found["handoff p50"]) == 11 and round(found["to client p50"]) == 46
    drawn = series([found])
    assert drawn["handoff p50"] == [(1000.0, found["handoff p50"])] and set(STAGES) < set(drawn)


def test_ratios_are_of_medians_and_rows_keep_their_names() -> None:
    def rows(*values: float) -> list[list[dict[str, object]]]:
        return [[{"what": "put", "bytes": 65536, "us": value, "pages": 7}, {"goal": "x"}] for value in values]

    (found,) = ratios(rows(10.0, 12.0, 30.0), rows(6.0, 5.0, 6.0))
    assert found["row"] == "put 65536 7" and found["figure"] == "us"
    assert (found["old"], found["new"], found["new/old"]) == (12.0, 6.0, 0.5)
    assert found["apart"] == 3.0, "the worse side"
    with pytest.raises(OtherShape):
        ratios(rows(10.0), rows(6.0), wanted="ms")


def test_a_whole_number_among_fractions_is_a_figure_and_a_new_column_is_left_out() -> None:
    old: list[list[dict[str, object]]] = [[{"us": 4}], [{"us": 4.5}]]
    new: list[list[dict[str, object]]] = [[{"us": 2.125, "more": 1.0}], [{"us": 2.125, "more": 1.0}]]
    (found,) = ratios(old, new)
    assert found["figure"] == "us" and found["new/old"] == 0.5


def test_what_grew_from_nothing_has_no_ratio() -> None:
    (found,) = ratios([[{"us": 0.0}]], [[{"us": 2.0}]])
    assert math.isnan(found["new/old"])


def test_rows_that_one_side_lacks_are_left_out() -> None:
    old: list[list[dict[str, object]]] = [[{"what": "put", "us": 4.0}, {"what": "get", "us": 8.0}]]
    new: list[list[dict[str, object]]] = [[{"what": "echo", "us": 1.0}, {"what": "get", "us": 2.0}]]
    (found,) = ratios(old, new)
    assert found["row"] == "get" and found["new/old"] == 0.25
    with pytest.raises(OtherShape):
        ratios(old, [[{"what": "echo", "us": 1.0}]])


def test_whole_numbers_that_differ_are_figures() -> None:
    (found,) = ratios(
        [[{"what": "put", "pages": 4, "of": 8}]] * 2,
        [[{"what": "put", "pages": 4, "of": 8}], [{"what": "put", "pages": 6, "of": 8}]],
    )
    assert (found["row"], found["figure"], found["old"], found["new"]) == ("put 8", "pages", 4.0, 5.0)


def test_rows_that_are_not_in_all_runs_are_named() -> None:
    old: list[list[dict[str, object]]] = [[{"what": "put", "us": 4.0}, {"what": "get", "us": 8.0}, {"doubt": "a"}]]
    new: list[list[dict[str, object]]] = [[{"what": "echo", "us": 1.0}, {"what": "get", "us": 2.0}]]
    assert skipped(old, new) == ["put", "echo"]
    assert skipped(old, old) == []


def test_what_a_run_says_against_itself_counts() -> None:
    rows: list[dict[str, object]] = [{"us": 1.0}, {"doubt": "the tiers evicted nothing"}, {"FAILED": "ids differ"}]
    assert said_against(rows, 1) == ["doubt: the tiers evicted nothing", "FAILED: ids differ"]
    assert said_against(rows[:1], 1) == ["it ended with 1"] and said_against(rows[:1], 0) == []


def test_what_is_no_number_in_a_run_is_neither_figure_nor_name() -> None:
    rows = [[{"what": "put", "us": 4.0, "ratio": None}], [{"what": "put", "us": 5.0, "ratio": 1.5}]]
    (found,) = ratios(rows, rows)
    assert (found["row"], found["figure"], found["old"]) == ("put", "us", 4.5)
    (found,) = ratios(rows[:1], rows[:1])
    assert found["row"] == "put"


@pytest.mark.parametrize("missed, code", [(3, 0), (1, 1)])
def test_a_missed_goal_is_no_doubt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missed: int, code: int) -> None:
    """Both sides' benchmarks run, and each ends with this code."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
    versus: Any = importlib.import_module("versus")
    new, old = checkout(tmp_path / "new"), checkout(tmp_path / "old")
    for side in (new, old):
        program = side / "scripts" / "bench" / "put"
        program.write_text(f'#!/bin/sh\necho \'{{"rows": [{{"what": "put", "us": 4.0}}]}}\' >"$2"\nexit {missed}\n')
        program.chmod(0o755)
    out = tmp_path / "out.json"
    monkeypatch.setattr(versus, "CHECKOUT", new)
    monkeypatch.setattr(sys, "argv", ["versus", "--old", str(old), "--rounds", "1", "--json", str(out), "put"])
    assert versus.main() == code
    rows = json.loads(out.read_text())["rows"]
    assert [row["doubt"] for row in rows if "doubt" in row] == [
        f"{side}, run 1: it ended with 1" for side in ("old", "new")
    ] * code


@pytest.mark.parametrize("ms, doubts, code", [(5.0, [], 0), (15.0, [], 3), (5.0, ["D computed 3 positions of prompts"], 1)])
def test_a_handoff_that_is_slow_or_doubtful_is_no_success(
    monkeypatch: pytest.MonkeyPatch, ms: float, doubts: list[str], code: int
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
    program = importlib.import_module("handoff")

    def played(_asked: Any, _lengths: Any, _folder: Path, outcome: Any) -> None:
        outcome.found[250] = [program.Handoff((ms / 4e3,) * 4 + (0.01, 0.01))]
        outcome.doubts += doubts

    monkeypatch.setattr(program, "play", played)
    monkeypatch.setattr(program.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "argv", ["handoff", "--quick"])
    assert program.main() == code


def checkout(at: Path, **files: str) -> Path:
    """`files`: by path, with `__` for a slash."""
    texts = {
        "scripts/bench/put": "",
        "scripts/bench/put.py": 'import report\nfrom tiers.rows import row\nprocess = HERE / "child.py"\nload(f"parts.{name}")\n',
        "scripts/bench/parts/one.py": "",
        "scripts/bench/report.py": "",
        "scripts/bench/tiers/__init__.py": "",
        "scripts/bench/tiers/rows.py": "from .figures import rate\nfrom deployment import plan\n",
        "scripts/bench/tiers/figures.py": "",
        "scripts/bench/child.py": "",
        "scripts/bench/other.py": "",
        "scripts/deployment/plan.py": "",
        "configs/pegaflow.toml": "",
    }
    for path, text in (texts | {name.replace("__", "/") + ".py": text for name, text in files.items()}).items():
        (at / path).parent.mkdir(parents=True, exist_ok=True)
        (at / path).write_text(text)
    return at


def test_a_benchmark_is_what_it_imports_and_starts(tmp_path: Path) -> None:
    found = sources(checkout(tmp_path), "put")
    modules = ("put", "put.py", "report.py", "tiers/__init__.py", "tiers/rows.py", "tiers/figures.py", "child.py", "parts/one.py")
    assert found == {*(f"scripts/bench/{module}" for module in modules), "scripts/deployment/plan.py"}


def test_where_the_benchmark_itself_differs(tmp_path: Path) -> None:
    old = checkout(tmp_path / "old")
    assert differing(old, checkout(tmp_path / "same"), "put") == []
    assert differing(old, checkout(tmp_path / "elsewhere", scripts__bench__other="x = 1"), "put") == []
    new = checkout(tmp_path / "new", scripts__bench__tiers__figures="x = 1", scripts__deployment__plan="y = 1")
    (new / "configs" / "pegaflow.toml").write_text("[tier]")
    assert differing(old, new, "put") == ["configs/pegaflow.toml", "scripts/bench/tiers/figures.py", "scripts/deployment/plan.py"]


def test_an_environment_that_runs_another_checkout_is_found(tmp_path: Path) -> None:
    here = Path(__file__).parents[2]
    assert foreign(tmp_path) == "", "not made yet"
    assert foreign(here) == ""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert "another checkout" in foreign(tmp_path)


def test_a_side_has_its_commit(tmp_path: Path) -> None:
    assert about("old", tmp_path)["commit"] == about("old", tmp_path)["dirty"] == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *command], check=True)
    found = about("old", tmp_path)
    assert len(found["commit"]) == 40 and found["dirty"] == "no"
    (tmp_path / "file").write_text("2")
    assert about("old", tmp_path) == found | {"dirty": "yes"}


def test_a_run_that_fails_takes_only_its_round_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
    versus: Any = importlib.import_module("versus")
    calls: list[Path] = []

    def run(at: Path, *_: object) -> Any:
        calls.append(at)
        if len(calls) == 4:
            raise RuntimeError("put of old ended with 2")
        return versus.Run([{"what": "put", "us": 4.0 if at.name == "old" else 2.0}], 0)

    out = tmp_path / "out.json"
    monkeypatch.setattr(versus, "CHECKOUT", checkout(tmp_path / "new"))
    monkeypatch.setattr(versus, "run", run)
    monkeypatch.setattr(sys, "argv", ["versus", "--old", str(checkout(tmp_path / "old")), "--json", str(out), "put"])
    assert versus.main() == 1
    rows = json.loads(out.read_text())["rows"]
    assert [row["new/old"] for row in rows if "new/old" in row] == [0.5]
    assert [row["doubt"] for row in rows if "doubt" in row] == ["1 rounds only: put of old ended with 2"]
    assert "ended with 2" in capsys.readouterr().err
