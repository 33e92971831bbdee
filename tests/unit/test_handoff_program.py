"""How scripts/bench/handoff runs its engines, and how it ends."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from deployment.http import HttpFailure

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
THREADS = ("VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")
STAGES = (0.001, 0.002, 0.003, 0.004, 0.030, 0.005)


class Stood:
    """P and D without processes. `environment`: what engines that start with it are given."""

    environment: ClassVar[dict[str, str]] = {}
    urls: ClassVar[list[str]] = ["http://127.0.0.1:1"]
    uncounted: ClassVar[list[str]] = []

    def __init__(self, *_: object) -> None:
        Stood.environment = dict(os.environ)

    def __enter__(self) -> Stood:
        return self

    def __exit__(self, *_: object) -> None: ...

    def pids(self) -> dict[str, int]:
        return {}

    def seen(self) -> dict[str, Any]:
        return {}

    def settled(self, before: object, requests: int) -> dict[str, Any]:
        return {}

    def left(self) -> dict[str, float]:
        return {}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    found = importlib.import_module("handoff")
    for name in (*THREADS, found.STEPS_FILE):
        monkeypatch.setenv(name, "another")  # and what the program sets is undone
    monkeypatch.setattr(found.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(found, "Stand", Stood)
    monkeypatch.setattr(found, "PromptMaker", lambda *_: None)
    monkeypatch.setattr(found, "check_memory", lambda _: None)
    return found


def played(program: Any, monkeypatch: pytest.MonkeyPatch, out: Path, end: BaseException | None, after: int) -> None:
    """Handoffs that are all alike; `end` instead of the one that follows `after` of them."""
    asked = iter(range(1_000_000))

    def once(self: Any, length: int) -> Any:
        if next(asked) == after and end is not None:
            raise end
        return program.Handoff(STAGES)

    monkeypatch.setattr(program.Bench, "once", once)
    monkeypatch.setattr(sys, "argv", ["handoff", "--quick", "--json", str(out)])


def test_the_report_says_how_engines_compute(program: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played(program, monkeypatch, tmp_path / "out.json", None, 0)
    assert program.main() == 0
    assert {name: Stood.environment.get(name) for name in THREADS} == dict.fromkeys(THREADS, "another"), "as it was"
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    (said,) = (row["value"] for row in rows if row.get("setting") == "threads of an engine")
    assert said == "VLLM_CPU_OMP_THREADS_BIND=another, OMP_NUM_THREADS=another"
    assert [(row["prompt"], row["n"]) for row in rows if "prompt" in row] == [(250, 8), (1900, 8)]


@pytest.mark.parametrize(
    "end, code",
    [(HttpFailure("there", 0, "gone"), 1), (KeyboardInterrupt(), 130), (LookupError("a fault"), None)],
    ids=lambda of: str(of),
)
def test_what_was_measured_is_shown_whatever_ends_it(
    program: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    end: BaseException,
    code: int | None,
) -> None:
    played(program, monkeypatch, tmp_path / "out.json", end, 2 * program.WARM + 3)
    if code is None:
        with pytest.raises(LookupError, match="a fault"):
            program.main()
    else:
        assert program.main() == code
    document = json.loads((tmp_path / "out.json").read_text())
    assert [(row["prompt"], row["n"]) for row in document["rows"] if "prompt" in row] == [(250, 2), (1900, 1)]
    (doubt,) = (row["doubt"] for row in document["rows"] if "doubt" in row)
    assert "the rest was not measured" in doubt and "NOT MET" in capsys.readouterr().out
    assert [goal["met"] for goal in document["goals"]] == [False, False]


def test_without_any_handoff_there_are_no_figures(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    played(program, monkeypatch, tmp_path / "out.json", HttpFailure("there", 0, "gone"), 0)
    assert program.main() == 69
    assert not (tmp_path / "out.json").exists() and "gone" in capsys.readouterr().err
