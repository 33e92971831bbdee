"""scripts/chaos, after set-up: see there."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn
from xmlrpc.client import Fault

from report import Goal, at_most, head, show

from deployment import ports as numbers
from deployment.http import HttpFailure
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.progress import say
from failures.result import RECOVERY_SECONDS, Result, matrix, picture, total
from failures.scenario import ALL, ENGINES, How, Scenario
from failures.stage import Stage

EX_FAILED: Final = 1
EX_NOT_SURE: Final = 3
"""Nothing is wrong, but a goal was missed: slow, or requests that could not be caught."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="scenarios whose name contains this; may be repeated")
    parser.add_argument("--quick", action="store_true", help="no engine is killed or restarted: those take most of the time")
    parser.add_argument("--list", action="store_true", help="the names of the scenarios, a line each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every result, with versions and machine; written after each")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="the matrix as a picture; written after each scenario, too")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all services there")
    asked = parser.parse_args()
    chosen = [one for one in ALL if _wanted(one, asked.only or [], quick=asked.quick)]
    if asked.list:
        print("\n".join(one.name for one in chosen))
        return 0
    if not chosen:
        print("chaos: no_scenario: none has such a name; --list shows them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _terminated)
    results: list[Result] = []

    def keep(result: Result) -> None:
        results.append(result)
        _write(results, asked.json, asked.svg)

    try:
        with redirect_stdout(sys.stderr):  # the progress; what comes out goes to stdout
            _play(chosen, keep, asked.logs)
    except (Complaint, HttpFailure, Fault) as error:
        print(f"chaos: {error}", file=sys.stderr)
        code = EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        code = 130
    else:
        code = 0 if all(goal.met for goal in goals(results)) else EX_NOT_SURE
    finally:
        if results:
            show([[result.row() for result in results], matrix(results)], goals(results), None)
    return EX_FAILED if total(results).failed else code


def goals(results: Sequence[Result]) -> list[Goal]:
    found = total(results)
    return [
        at_most("wrong answers", found.wrong, 0),
        at_most("scenarios that failed", found.failed, 0),
        at_most("scenarios that were missed", found.missed, 0),
        at_most("longest recovery (s)", found.slowest, RECOVERY_SECONDS),
    ]


def _wanted(scenario: Scenario, words: list[str], *, quick: bool) -> bool:
    if quick and scenario.victim in ENGINES and scenario.how is not How.STOP:
        return False
    return not words or any(word in scenario.name for word in words)


def _play(chosen: Sequence[Scenario], keep: Callable[[Result], None], logs: Path | None) -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pegaflow-chaos-")))
        stage = stack.enter_context(Stage(folder, (logs or folder / "run").resolve(), numbers.from_system()))
        for number, scenario in enumerate(chosen, start=1):
            say(f"{number} of {len(chosen)}, {time.monotonic() - began:.0f} s so far: {scenario}")
            result = stage.play(scenario)
            say(f"    {json.dumps(result.row())}")
            keep(result)
            stage.mend(result)


def _write(results: Sequence[Result], file: Path | None, chart: Path | None) -> None:
    if file is not None:
        document = {
            **head(),
            "rows": [result.row() for result in results],
            "matrix": matrix(results),
            "goals": [asdict(goal) for goal in goals(results)],
        }
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if chart is not None:
        chart.write_text(picture(results), encoding="utf-8")


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
