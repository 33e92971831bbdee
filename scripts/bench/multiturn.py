"""Conversations of several turns: P + D through the router against two mixed vLLMs on the same two cores.

    scripts/bench/multiturn [--quick] [--configuration NAME]… [--model smollm2|tiny] [--rounds 1] [--sessions 16] [--turns 5]
                            [--first 250] [--growth 90] [--answer 40] [--rate R] [--slo-ttft-ms T] [--slo-tpot-ms T]
                            [--engine FLAGS] [--seed 1] [--json FILE] [--svg FOLDER] [--logs FOLDER]

NOTE: clients, engines and services share the same two cores. Ratios are taken within one run; absolute figures are not comparable
between machines or runs.

mixed          two vLLMs without connector, each with its own prefix cache. The client keeps a session at one of them (even ones
               at the first, odd ones at the second): perfect affinity, balanced, and no router in between
mixed-chunked  the same with at most 256 ids a step. By itself vLLM takes 2,048 here, so who decodes stands behind whole prompts;
               with smaller steps mixed engines trade throughput and first tokens for the time between tokens
pd             one P and one D with connector, a tier each, a metaserver, the router with --pd-first-token. Pools hold everything
pd-small       the same where neither the pools nor P's own cache hold more than a quarter of what the conversations take at their
               ends: the tiers have to evict, and P computes again what they have evicted (`recomputed`). P also takes fewer
               prompts at once. D's own cache has to hold what D decodes at once, in the last turn everything, or it would
               preempt: so D misses nothing of what it once had, and what a miss costs there is not shown

All engines have the same flags but for these (float32, eager, 32 ids a block), one compute thread each, bound to no core; all
processes of a configuration have two cores together. Every run begins with new processes and empty caches. Prompts, their lengths
and those of the answers (no end before --answer ids) are the same everywhere; each turn's prompt is all that was said before and
--growth ids.

closed     every session asks its next turn as soon as it has the answer: sixteen at once, all the time
open       the turns come as one seeded Poisson stream, at 0.7 of the mixed pair's requests per second in the closed loop unless
           --rate says otherwise. A turn whose time has come before the answer before it waits for that answer (`sent late`)

ttft       from when the request was due (in the closed loop that is when it is sent) to its first token. In pd that waits for D's
           first token too: the router holds P's back until then
tpot, itl  from the second token on, on both sides: in pd P's token and D's first come at once, and that is no credit
whole      from there to the last token: what no such rule moves
goodput    requests per second within both limits of the SLO; unless given, 5 times the time to first token and 2 times the time
           per token of a mixed engine that has one request, of a first prompt, and nothing else to do

16 requests a turn: their p99 is nearly the slowest of them. p99 over all turns has 80, and the one between tokens thousands.

Goals are against `mixed`, whose engines have the flags of P and D; the same ratios against `mixed-chunked` stand beside them. One
run of a configuration does not say how far two runs of it lie apart, and a goal then says `one run`. With --rounds 3 each is
played three times, each round in the other order, and each round's ratios are shown. A goal is on their median; it is met only if
each round meets it, and not decided where some do.

The JSON is written after each run; whatever ends the benchmark before its time, what was played until then is shown. Exit codes:
0 all goals are met, 3 one is missed, 1 something is doubtful (the table says what; no goal is met then), 69 nothing was measured,
130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NoReturn

from engines.threads import ONE_THREAD, SETTING
from report import Goal, ended, show, write
from turns import rows
from turns.aims import beside, goals
from turns.arrivals import by_session, poisson
from turns.doubts import answers, doubts
from turns.drawings import drawings
from turns.figures import Slo, latencies
from turns.record import Arrival, Kind, Run
from turns.run import one_run
from turns.shape import Shape, kv_gib, page_bytes, pool_bytes, small_blocks
from turns.stand import Stand
from turns.workload import Workload

from deployment import tiny_model
from deployment.http import HttpFailure
from deployment.plan import ENGINE_FLAGS, MEMORY
from environment.checkout import MODEL
from environment.complaint import EX_UNAVAILABLE, Complaint
from environment.preflight import GIB, check_disk, check_memory
from environment.progress import say, step

QUICK: Final = {"sessions": 4, "turns": 2}
QUICK_KINDS: Final = (Kind.MIXED, Kind.PD)
SLO_TTFT: Final = 5.0
SLO_TPOT: Final = 2.0
LOAD: Final = 0.7
LONGEST: Final = 2048
"""`--max-model-len` of the deployment."""
ALONE: Final = 3
CHUNKED: Final = "--max-num-batched-tokens 256"
"""Of the engines of `mixed-chunked`, behind all other flags."""


class Bench:
    """The runs of one call, in order. `folder` keeps logs and the tiny model. `rate`: of the open loop; 0 before it is known."""

    def __init__(self, asked: argparse.Namespace, shape: Shape, folder: Path) -> None:
        self._asked, self._folder, self.shape = asked, folder, shape
        self.runs: list[Run] = []
        self.rate = 0.0
        self._model, self.name = MODEL, asked.model
        if asked.model == "tiny":
            self._model = folder / "model"
            with step("make a tiny model with random weights"):
                tiny_model.make(self._model)
        self._page = page_bytes(json.loads((self._model / "config.json").read_text()))
        self._kv_gib = kv_gib(shape, self._page)
        self.workload = Workload(shape, self._model, self.name)

    def preflight(self) -> None:
        """Raises Complaint."""
        pools = 2 * pool_bytes(self.shape, self._page, small=False)
        check_memory(2 * (2 + self._kv_gib) * GIB + pools)
        check_disk(MEMORY, pools)

    def play(self, kind: Kind, arrival: Arrival, number: int) -> None:
        """Raises Complaint, HttpFailure."""
        shape = self.shape
        pool = pool_bytes(shape, self._page, small=kind is Kind.SMALL)
        options: dict[str, Any] = {"model": self._model, "model_name": self.name, "kv_gib": self._kv_gib, "pool_size": str(pool)}
        options["engine"] = f"{ENGINE_FLAGS} {self._asked.engine} {CHUNKED if kind is Kind.CHUNKED else ''}".strip()
        if kind is Kind.SMALL:
            options["p"] = f"--num-gpu-blocks-override {small_blocks(shape, LONGEST)}"
        times = None
        if arrival is Arrival.OPEN:
            times = by_session(poisson(shape.sessions, shape.turns, self.rate, self._asked.seed), shape.sessions)
        say(f"{len(self.runs) + 1}: {kind}, {arrival} loop, round {number}")
        with Stand(kind, self._folder / (arrival if number == 1 else f"{arrival}-{number}"), options) as stand:
            run = one_run(stand, self.workload, self.name, arrival, times, ALONE, number)
        for why in run.failures(shape.answer, shape.requests):
            say(f"  FAILED: {why}")
        if not run.good(shape.answer) or not run.good_alone(shape.answer):
            raise Complaint("no_answers", f"{kind}: no request had its answer, with others beside it or alone")
        self.runs.append(run)

    def slo(self) -> Slo:
        """As asked for, or from the requests that the mixed engine had alone."""
        alone = latencies([one for run in self.runs[:1] for one in run.good_alone(self.shape.answer)])
        ttft, tpot = self._asked.slo_ttft_ms or SLO_TTFT * alone.ttft.p50, self._asked.slo_tpot_ms or SLO_TPOT * alone.tpot.p50
        return Slo(ttft / 1e3, tpot / 1e3)

    def settings(self, slo: Slo, cores: Sequence[int]) -> list[dict[str, Any]]:
        shape = self.shape
        roomy, small = (pool_bytes(shape, self._page, small=small) for small in (False, True))
        values = {
            "model": f"{self.name}, {self._page >> 10} KiB a page",
            "engines": f"{ENGINE_FLAGS} {self._asked.engine}".strip(),
            "cores": ", ".join(str(core) for core in cores),
            "conversations": f"{shape.sessions} of {shape.turns} turns: {shape.first} ids, then {shape.growth} more each",
            "answers": f"{shape.answer} ids",
            "seed": self._asked.seed,
            "open loop, requests/s": round(self.rate, 3) if self.rate else "none",
            "SLO": f"ttft {slo.ttft * 1e3:.0f} ms, tpot {slo.tpot * 1e3:.0f} ms",
            "KV cache of an engine": f"{self._kv_gib} GiB",
            "pool of a tier": f"{roomy >> 20} MiB",
            "mixed-chunked": f"as mixed, and {CHUNKED}",
            "pd-small": f"as pd, but pools of {small >> 20} MiB and {small_blocks(shape, LONGEST)} blocks for P's own cache, of"
            f" {shape.pages} that all conversations take; D's own cache holds them all",
        }
        return [*({"setting": name, "value": value} for name, value in values.items()), SETTING]


def measure(
    bench: Bench, configurations: Sequence[Kind], *, quick: bool, rounds: int, rate: float, played: Callable[[], None]
) -> None:
    """Plays everything. The last of a round is the first of the next one. `configurations`: the first is a mixed one. `played` is
    called after each run.

    Raises Complaint, HttpFailure.
    """
    kinds = list(configurations)
    for arrival in Arrival if not quick else [Arrival.CLOSED]:
        if arrival is Arrival.OPEN:
            mixed = bench.runs[0]
            bench.rate = rate or LOAD * len(mixed.good(bench.shape.answer)) / mixed.seconds
        for number in range(1, rounds + 1):
            for kind in kinds:
                bench.play(kind, arrival, number)
                played()
            kinds.reverse()


def tables(bench: Bench, cores: Sequence[int], stopped: str) -> tuple[list[list[dict[str, Any]]], list[Goal], list[str]]:
    """What the runs so far say: tables, goals, and what is doubtful. `stopped`: why there are no more of them."""
    slo, runs, shape = bench.slo(), bench.runs, bench.shape
    order = sorted(runs, key=lambda run: (list(Arrival).index(run.arrival), run.round, list(Kind).index(run.kind)))
    like = answers(runs[0], shape)
    against = [(run, doubts(run, shape, like)) for run in runs]
    mixed = {(run.arrival, run.round, run.kind): run for run in runs if run.kind.mixed}
    pairs = [
        (run, other)
        for run in order
        for kind in (Kind.MIXED, Kind.CHUNKED)
        if run.kind is not Kind.MIXED and run.kind is not kind and (other := mixed.get((run.arrival, run.round, kind)))
    ]
    judged, chunked = (
        [[pair for pair in pairs if (pair[0].kind, pair[1].kind, pair[0].arrival) == (Kind.PD, kind, loop)] for loop in Arrival]
        for kind in (Kind.MIXED, Kind.CHUNKED)
    )
    found = [
        bench.settings(slo, cores),
        [row for run in order for row in rows.turn_rows(run, shape)],
        [rows.total_row(run, shape, slo, like) for run in order],
        [rows.alone_row(run, shape) for run in order],
        [row for run in order for row in rows.hit_rows(run)],
        [rows.again_row(run, shape) for run in order],
        [rows.cpu_row(run, shape) for run in order],
        [rows.ratio_row(ours, theirs, shape, slo) for ours, theirs in pairs],
        [row for of_loop in chunked if of_loop for row in beside(of_loop, shape, slo)],
        [row for ours, theirs in pairs for row in rows.loss_rows(ours, theirs, shape, slo)],
    ]
    met = [
        goal
        for of_loop in judged
        if of_loop
        for goal in goals(
            of_loop, shape, slo, any(why for run, why in against if any(run is one for pair in of_loop for one in pair))
        )
    ]
    wrong = [*(text for _, why in against for text in why), *filter(None, [stopped])]
    found.append([{"doubt": text} for text in wrong])
    return [table for table in found if table], met, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="4 sessions of 2 turns, closed loop, mixed and pd")
    names = [str(kind) for kind in Kind]
    parser.add_argument("--configuration", choices=names, action="append", help="only these, a mixed one and pd among them")
    parser.add_argument("--model", choices=("smollm2", "tiny"), default="smollm2", help="tiny: random weights")
    parser.add_argument("--rounds", type=int, default=1, help="how often each configuration is played")
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--first", type=int, default=250, help="ids of a first prompt")
    parser.add_argument("--growth", type=int, default=90, help="ids that each later turn adds, beside the answer before it")
    parser.add_argument("--answer", type=int, default=40, help="ids of an answer")
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second in the open loop")
    parser.add_argument("--slo-ttft-ms", type=float, default=0.0)
    parser.add_argument("--slo-tpot-ms", type=float, default=0.0)
    parser.add_argument("--engine", default="", metavar="FLAGS", help='of all engines: "--max-num-batched-tokens 256", say')
    parser.add_argument("--seed", type=int, default=1, help="of the open loop's arrivals")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the charts there")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of all processes there")
    asked = parser.parse_args()
    shape = Shape(asked.sessions, asked.turns, asked.first, asked.growth, asked.answer)
    if asked.quick:
        shape = shape._replace(**QUICK)
    usual = QUICK_KINDS if asked.quick else names
    kinds = [kind for kind in Kind if kind in (asked.configuration or usual)]
    if not kinds[0].mixed or Kind.PD not in kinds:
        parser.error("--configuration: ratios need pd and one of the mixed ones")
    if asked.rounds < 1:
        parser.error("--rounds: one at least")
    if min(shape) < 1 or shape.answer < 3:
        parser.error("sizes are positive, and an answer has three ids at least")
    if shape.whole > LONGEST:
        parser.error(f"a conversation of {shape.whole} ids at its end; {LONGEST} are the most")
    signal.signal(signal.SIGTERM, _terminated)
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)  # for everything that is started from here
    os.environ.update(ONE_THREAD)
    bench: Bench | None = None
    failed: Exception | None = None
    stopped, code = "", 0
    try:
        with ExitStack() as stack:
            folder = asked.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pegaflow-turns-")))
            with contextlib.redirect_stdout(sys.stderr):
                playing = bench = Bench(asked, shape, folder.absolute())
                bench.preflight()

                def played() -> None:
                    if asked.json is not None:
                        found, met, _ = tables(playing, cores, "the benchmark has not ended: this is what was played until now")
                        write(found, met, asked.json)

                measure(bench, kinds, quick=asked.quick, rounds=asked.rounds, rate=asked.rate, played=played)
    except (Complaint, HttpFailure) as error:
        print(f"multiturn: {error}", file=sys.stderr)
        stopped, code = f"the rest was not measured: {error}", EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("multiturn: interrupted", file=sys.stderr)
        stopped, code = "the rest was not measured: interrupted", 130
    except Exception as error:  # a fault of the benchmark takes nothing away from what was played before it
        stopped, failed = f"the rest was not measured: {type(error).__name__}: {error}", error
    if bench is not None and bench.runs:
        found, met, wrong = tables(bench, cores, stopped)
        show(found, met, asked.json)
        draw(bench, asked.svg)
        code = code if code == 130 else ended(met, wrong=bool(wrong))
    if failed is not None:
        raise failed
    return code


def draw(bench: Bench, folder: Path | None) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for arrival in Arrival:
        if runs := [run for run in bench.runs if run.arrival is arrival]:
            for name, text in drawings(runs, bench.shape, bench.slo()).items():
                (folder / name).write_text(text, encoding="utf-8")


def _terminated(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
