"""Where the time goes between P's answer and D's first token, one request at a time.

    scripts/bench/handoff [--quick] [--model smollm2|tiny] [--lengths 250,1000,1900] [--rounds 30]
                          [--json FILE] [--svg FOLDER] [--logs FOLDER]

P and D with connector, a tier each, a metaserver, the router with --pd-first-token: D's pages lie in P's tier. Every prompt is
new. The handoff begins where the router has P's answer (as `pegaflow_router_handoff_seconds` does) and ends where D's first step
begins; D's engine core writes down its moments by the same clock. `to D` has the client's sending in it, a millisecond or less.
That step itself and the way back to the client are vLLM's, and stand beside it.

NOTE: clients, engines and services share the same cores. Engines compute with as many threads as vLLM starts by itself, on the
cores that it binds them to. With one thread each, bound to no core, as in multiturn, a handoff takes up to a fifth longer, and
D's step a quarter to a half longer (docs/performance.md).

Whatever ends the benchmark before its time, what was measured until then is shown, with a doubt, and no goal is met.

Exit codes: 0 all goals are met, 3 one is missed, 1 something is doubtful (no goal is met then), 69 nothing was measured, 130
interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from engines.journal import JournalFile
from engines.names import SCHEDULER, STEPS_FILE
from engines.threads import ONE_THREAD
from handoffs.timeline import Handoff, handoff, row, series
from report import Goal, at_most, ended, show
from turns.doubts import restarted
from turns.hits import Growth
from turns.record import Kind
from turns.shape import BLOCK
from turns.stand import Stand

from charts.lines import Axis, draw
from deployment import metrics, tiny_model
from deployment.cases import PromptMaker
from deployment.http import HttpFailure, Server
from deployment.plan import ENGINE_FLAGS, MODEL_NAME
from environment.checkout import MODEL
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.preflight import GIB, check_memory
from environment.progress import say, step

AIM_MS: Final = 10.0
QUICK: Final = {"lengths": "250,1900", "rounds": 8}
TOKENS: Final = 4
"""Of an answer: the first from P, the others from D."""
LONGEST: Final = 2000
WARM: Final = 3
"""Rounds that are not counted."""
SUMS: Final = ("pegaflow_router_first_token_seconds_sum", "pegaflow_router_handoff_seconds_sum")
"""The router's: from the request's arrival, and from P's answer, to D's first token."""


@dataclass(slots=True)
class Outcome:
    """Filled while it goes on, so that what ends the benchmark takes nothing away. `found`: by length of the prompt."""

    found: dict[int, list[Handoff]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        return [row(length, -(-length // BLOCK), found) for length, found in self.found.items()]

    def goals(self) -> list[Goal]:
        goals = [at_most(f"handoff p50 of {one['prompt']} ids, ms", one["handoff p50"], AIM_MS) for one in self.rows()]
        return [replace(goal, met=goal.met and not self.doubts) for goal in goals]


class Bench:
    """`journal`: what D's engine core writes."""

    def __init__(self, stand: Stand, journal: JournalFile, prompts: PromptMaker, model_name: str) -> None:
        self._stand, self._journal, self._prompts, self._name = stand, journal, prompts, model_name
        self._router = Server(int(stand.urls[0].rpartition(":")[2]))
        self._asked = 0

    def once(self, length: int) -> Handoff:
        """Raises HttpFailure, and ValueError for a handoff that was none."""
        self._asked += 1
        prompt = self._prompts.completion(f"pier {self._asked}", length).body["prompt"]
        body = {"model": self._name, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        before = self._took()
        self._journal.read()
        heard, sent = 0.0, time.monotonic()
        for event in self._router.stream("/v1/completions", body):
            heard = heard or (time.monotonic() if event.body.get("choices") else 0.0)
        whole, handed = (after - then for after, then in zip(self._took(), before, strict=True))
        stages = self._journal.read().stages
        if len(stages) != 1 or not handed:
            raise ValueError(f"{len(stages)} requests at D, handed over in {handed:.4f} s")
        (moments,) = stages.values()
        return handoff(sent + whole - handed, moments, heard)

    def _took(self) -> list[float]:
        seen = metrics.take(self._router)
        return [seen.total(name) for name in SUMS]

    def measure(self, lengths: list[int], rounds: int, outcome: Outcome) -> None:
        """In turns over the lengths. Raises HttpFailure."""
        for number in range(WARM + rounds):
            for length in lengths:
                try:
                    seen = self.once(length)
                except ValueError as error:
                    outcome.doubts.append(f"round {number}, {length} ids: {error}")
                    continue
                if number >= WARM:
                    outcome.found.setdefault(length, []).append(seen)


def play(asked: argparse.Namespace, lengths: list[int], folder: Path, outcome: Outcome) -> None:
    """Raises Complaint, HttpFailure."""
    model = MODEL
    if asked.model == "tiny":
        model = folder / "model"
        with step("make a tiny model with random weights"):
            tiny_model.make(model)
    check_memory(8 * GIB)
    steps = folder / "d.steps"
    os.environ[STEPS_FILE] = str(steps)
    options = {"model": model, "model_name": asked.model, "d": f"--scheduler-cls {SCHEDULER}"}
    with Stand(Kind.PD, folder, options) as stand:
        bench = Bench(stand, JournalFile(steps), PromptMaker(model, asked.model), asked.model)
        pids = stand.pids()
        before = stand.seen()
        with step(f"{asked.rounds} rounds of {len(lengths)} lengths, and {WARM} before"):
            bench.measure(lengths, asked.rounds, outcome)
        after = stand.settled(before, (WARM + asked.rounds) * len(lengths) - len(outcome.doubts))
        computed = Growth(before, after).decode_positions
        if computed:
            outcome.doubts.append(f"D computed {computed} positions of prompts")
        if left := stand.left():
            outcome.doubts.append(f"left behind: {left}")
        outcome.doubts += [*stand.uncounted, *restarted(pids, stand.pids())]
    outcome.doubts += [f"no handoff of {length} ids" for length in lengths if length not in outcome.found]


def settings(asked: argparse.Namespace) -> list[dict[str, Any]]:
    values = {"model": asked.model, "engines": ENGINE_FLAGS, "rounds": f"{asked.rounds}, and {WARM} before that do not count"}
    values["threads of an engine"] = ", ".join(f"{name}={os.environ.get(name, 'as vLLM has it')}" for name in ONE_THREAD)
    return [{"setting": name, "value": value} for name, value in values.items()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two lengths, 8 rounds")
    parser.add_argument("--model", choices=(MODEL_NAME, "tiny"), default=MODEL_NAME, help="tiny: random weights")
    parser.add_argument("--lengths", default="250,1000,1900", metavar="N,…", help=f"ids of a prompt, {LONGEST} at most")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the chart there")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all processes there")
    asked = parser.parse_args()
    if asked.quick:
        vars(asked).update(QUICK)
    try:
        lengths = [int(word) for word in asked.lengths.split(",")]
    except ValueError:
        parser.error(f"--lengths: numbers with commas between them, not {asked.lengths!r}")
    if not lengths or min(*lengths, asked.rounds) < 1 or max(lengths) > LONGEST:
        parser.error(f"lengths and rounds are positive, and {LONGEST} ids are the most")
    signal.signal(signal.SIGTERM, _terminated)
    outcome = Outcome()
    failed: Exception | None = None
    stopped, code = "", EX_UNAVAILABLE
    try:
        with ExitStack() as stack:
            folder = asked.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pegaflow-handoff-")))
            with contextlib.redirect_stdout(sys.stderr):
                folder.mkdir(parents=True, exist_ok=True)
                play(asked, lengths, folder.absolute(), outcome)
    except (Complaint, HttpFailure) as error:
        stopped = str(error)
    except KeyboardInterrupt:
        stopped, code = "interrupted", 130
    except Exception as error:  # a fault of the benchmark takes nothing away from what was measured before it
        stopped, failed = f"{type(error).__name__}: {error}", error
    if stopped:
        print(f"handoff: {stopped}", file=sys.stderr)
        outcome.doubts.append(f"the rest was not measured: {stopped}")
    for doubt in outcome.doubts:
        say(f"DOUBT: {doubt}")
    if outcome.found:
        rows = outcome.rows()
        doubts = [{"doubt": text} for text in outcome.doubts]
        show([table for table in (settings(asked), rows, doubts) if table], outcome.goals(), asked.json)
        if asked.svg is not None:
            asked.svg.mkdir(parents=True, exist_ok=True)
            chart = draw("From P's answer to D's first token", Axis("ids of the prompt"), Axis("ms"), series(rows))
            (asked.svg / "handoff.svg").write_text(chart, encoding="utf-8")
    if failed is not None:
        raise failed
    if not outcome.found or code == 130:
        return code
    return ended(outcome.goals(), wrong=bool(outcome.doubts))


def _terminated(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
