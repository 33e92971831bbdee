"""scripts/chaos, after set-up: see there."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from report import show

from deployment import ports as numbers
from deployment.http import HttpFailure
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.progress import say
from failures.result import Result, matrix
from failures.scenario import ALL, ENGINES, How, Scenario
from failures.stage import Stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="scenarios whose name contains this; may be repeated")
    parser.add_argument("--quick", action="store_true", help="no engine is killed or restarted: those take most of the time")
    parser.add_argument("--list", action="store_true", help="the names of the scenarios, a line each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result, with versions and machine")
    asked = parser.parse_args()
    chosen = [one for one in ALL if _wanted(one, asked.only or [], quick=asked.quick)]
    if asked.list:
        print("\n".join(one.name for one in chosen))
        return 0
    if not chosen:
        print("chaos: no_scenario: none has such a name; --list shows them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _terminated)
    try:
        results = _play(chosen)
    except (Complaint, HttpFailure) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        return 130
    show([[result.row() for result in results], matrix(results)], [], asked.json)
    bad = [result for result in results if result.faults()]
    for result in bad:
        say(f"FAILED {result.scenario}: {'; '.join(result.faults())}")
    say(f"{len(results) - len(bad)} of {len(results)} scenarios are as they should be")
    return 1 if bad else 0


def _wanted(scenario: Scenario, words: list[str], *, quick: bool) -> bool:
    if quick and scenario.victim in ENGINES and scenario.how is not How.STOP:
        return False
    return not words or any(word in scenario.name for word in words)


def _play(chosen: list[Scenario]) -> list[Result]:
    results = []
    with tempfile.TemporaryDirectory(prefix="pegaflow-chaos-") as folder, Stage(Path(folder), numbers.from_system()) as stage:
        for number, scenario in enumerate(chosen, start=1):
            say(f"{number} of {len(chosen)}: {scenario}")
            results.append(stage.play(scenario))
            say(f"    {json.dumps(results[-1].row())}")
    return results


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
