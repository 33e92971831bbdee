"""How a run of scripts/chaos ends: its exit code, and what its JSON says of a run that did not get to its end."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deployment.traffic import Outcome, Seen
from environment.complaint import Complaint
from failures.result import BACK_SECONDS, RECOVERY_SECONDS, Result
from failures.scenario import Scenario

RIGHT = Outcome("x", Seen.RIGHT, "")


class Run(NamedTuple):
    code: int
    json: dict[str, Any]
    said: str

    @property
    def not_met(self) -> dict[str, float]:
        return {goal["name"]: goal["value"] for goal in self.json["goals"] if not goal["met"]}


class Chaos:
    """`scripts/chaos --only fetching:tier`, six scenarios, on a stage where nothing is started: `plays` says what came of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
        monkeypatch.setattr(signal, "signal", lambda number, handler: None)
        monkeypatch.setattr(sys, "argv", ["chaos", "--only", "fetching:tier", "--json", str(folder / "chaos.json")])
        self.file = folder / "chaos.json"
        self._program = importlib.import_module("failures.__main__")
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, plays: Callable[[Scenario], Result], mends: Callable[[Result], None] = lambda result: None) -> Run:
        class Stage:
            def __init__(self, *_: object) -> None:
                pass

            def __enter__(self) -> Stage:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            play, mend = staticmethod(plays), staticmethod(mends)

        self._monkeypatch.setattr(self._program, "Stage", Stage)
        code = self._program.main()
        return Run(code, self.written(), self._capsys.readouterr().out)

    def written(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.file.read_text())
        assert [file.name for file in self.file.parent.iterdir()] == ["chaos.json"]
        return document


@pytest.fixture
def chaos(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Chaos:
    return Chaos(monkeypatch, capsys, tmp_path)


def good(scenario: Scenario) -> Result:
    return Result(scenario, RIGHT, back=1.0, whole=1.0, found=True)


def killed(other: Callable[[Scenario], Result]) -> Callable[[Scenario], Result]:
    """What came of the scenarios in which tier a is killed; the others are good."""
    return lambda scenario: (other if (scenario.victim, scenario.how) == ("tier-a", "kill") else good)(scenario)


def test_all_as_it_should_be(chaos: Chaos) -> None:
    run = chaos(good)
    assert run.code == 0 and run.not_met == {} and run.said.count("NOT MET") == 0
    assert (run.json["asked"], run.json["played"], run.json["ended"]) == (6, 6, "complete") and len(run.json["rows"]) == 6


@pytest.mark.parametrize(
    ("result", "code", "goals"),
    [
        ({"back": 3 * BACK_SECONDS, "whole": 1.0}, 3, {"scenarios that were slow": 1}),
        ({"whole": RECOVERY_SECONDS + 1}, 3, {"scenarios that were slow": 1, "longest recovery (s)": RECOVERY_SECONDS + 1}),
        ({"missed": "missed: …"}, 3, {"scenarios that were missed": 1}),
        ({"left": {"leases": 1}}, 1, {"scenarios that failed": 1}),
        ({"probe": Outcome("x", Seen.WRONG, "")}, 1, {"wrong answers": 1, "scenarios that failed": 1}),
        ({"failure": "error: …"}, 1, {"scenarios that failed": 1}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
def test_one_that_is_not_as_it_should_be_is_no_success(chaos: Chaos, result: Any, code: int, goals: dict[str, float]) -> None:
    run = chaos(killed(lambda scenario: Result(scenario, **{"probe": RIGHT, "found": True} | result)))
    assert run.code == code and run.not_met == goals
    assert run.json["ended"] == "complete"


def interrupt(_scenario: Scenario) -> Result:
    raise KeyboardInterrupt


def test_an_interrupted_run_says_so(chaos: Chaos) -> None:
    def plays(scenario: Scenario) -> Result:
        return (interrupt if scenario.victim == "tier-b" else good)(scenario)

    run = chaos(plays)
    assert run.code == 130 and run.not_met == {"scenarios not played": 3}
    assert (run.json["asked"], run.json["played"], run.json["ended"]) == (6, 3, "interrupted")
    assert "goal scenarios not played: 3, wanted <= 0: NOT MET" in run.said


def test_a_failure_outweighs_an_interruption(chaos: Chaos) -> None:
    run = chaos(lambda scenario: (interrupt if scenario.victim == "tier-b" else Result)(scenario))
    assert run.code == 1 and run.json["ended"] == "interrupted"


def test_a_run_that_was_interrupted_at_once_is_not_the_one_before(chaos: Chaos) -> None:
    chaos(good)
    run = chaos(interrupt)
    assert run.code == 130 and (run.json["played"], run.json["ended"], run.json["rows"]) == (0, "interrupted", [])


def test_a_stage_that_breaks_leaves_scenarios_that_were_not_played(chaos: Chaos) -> None:
    def mends(_result: Result) -> None:
        raise Complaint("not_ready", "vllm-d")

    run = chaos(good, mends)
    assert run.code == 69 and run.not_met == {"scenarios not played": 5}
    assert (run.json["played"], run.json["ended"]) == (1, "not_ready: vllm-d")


def test_what_nobody_foresaw_is_written_and_raised(chaos: Chaos) -> None:
    def plays(_scenario: Scenario) -> Result:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        chaos(plays)
    assert chaos.written()["ended"] == "error: RuntimeError('no')"


def test_a_run_that_goes_on_or_was_killed_is_under_way(chaos: Chaos) -> None:
    seen = []

    def plays(scenario: Scenario) -> Result:
        seen.append((chaos.written()["ended"], chaos.written()["played"], chaos.written()["goals"][4]["value"]))
        return good(scenario)

    chaos(plays)
    assert seen == [("under way", played, 6 - played) for played in range(6)]
