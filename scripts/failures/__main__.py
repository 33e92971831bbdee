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
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn
from xmlrpc.client import Fault

from deployment import ports as numbers
from deployment.http import HttpFailure
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.progress import say
from failures.record import COMPLETE, INTERRUPTED, Record
from failures.result import Result, total
from failures.scenario import ALL, ENGINES, How, Scenario
from failures.stage import Stage

EX_FAILED: Final = 1
EX_NOT_SURE: Final = 3
"""Nothing is wrong, but a goal was missed: slow, or requests that could not be caught."""
EX_INTERRUPTED: Final = 130


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
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader, `head` for example, may have seen enough
        print("\n".join(one.name for one in chosen))
        return 0
    if not chosen:
        print("chaos: no_scenario: none has such a name; --list shows them", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _terminated)
    record = Record(len(chosen), asked.json, asked.svg)
    how, code = "", EX_FAILED
    try:
        with redirect_stdout(sys.stderr):  # the progress; what comes out goes to stdout
            _play(chosen, record.keep, asked.logs)
        how, code = COMPLETE, 0 if all(goal.met for goal in record.goals()) else EX_NOT_SURE
    except (Complaint, HttpFailure, Fault) as error:
        print(f"chaos: {error}", file=sys.stderr)
        how, code = str(error), EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("chaos: interrupted", file=sys.stderr)
        how, code = INTERRUPTED, EX_INTERRUPTED
    finally:
        record.end(how or f"error: {sys.exception()!r}")
    return EX_FAILED if total(record.results).failed else code


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


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
