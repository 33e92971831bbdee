"""What PegaFlow costs and saves inside vLLM: one engine with the connector and one without, on the same cores, in turns.

    scripts/bench/engine [--quick] [--starts 3] [--rounds 2] [--control] [--json FILE] [--profile FILE]

NOTE: clients, engine and tier share this machine's cores. Ratios are taken pair by pair within this run; absolute figures are not
comparable between machines or runs.

Both engines: SmolLM2-135M, float32, eager, 32 ids a block, vLLM's own prefix cache on (as in production). Only one side is ever
busy; the other one is held by SIGSTOP (engine, tier, metaserver and mover), so it takes no cycle at all, and the plain engine's
figures carry nothing of PegaFlow. Sides take turns A B, B A, A B, …

Two engines without any connector differ by up to 3 %, for as long as they live: where their memory lies is drawn when they start.
So both are started anew `--starts` times, and the table says what each start gave. `--control` puts a second plain engine in the
place of the one with the connector: what then differs from 1 is the noise of this machine.

vLLM would give the two sides different numbers of compute cores (it keeps one free, and one more with a connector, unless that
leaves none), so both are told: all but the last.

ttft       a prompt of random ids that nobody has seen (cold), and the same prompt again from the tier (warm): vLLM's own cache is
           emptied in between (POST /reset_prefix_cache), and the connector's counters must say that all its pages were loaded and
           exactly one position was computed. `local`: the same from vLLM's own cache, on the plain engine
workload   unique prompts, several at once, prefill and decode, no hit (checked by counters): ids per second with and without
           connector; also per CPU second of the thread that computes, which other load on the machine moves less, and of the
           whole side (engine, tier, mover, metaserver), by part. What services cost while idle counts per second, not per id
steps      three bystanders decode; meanwhile other prompts are computed and saved, then loaded. A step is timed in the engine
           core, from `schedule` to the end of `update_from_output`, by a subclass of vLLM's scheduler that both sides run with.
           Decode steps of exactly the bystanders: quiet; the one behind a prefill (its pages are copied meanwhile); during a load

Exit codes: 0 all goals are met, 3 one is missed, 1 something is wrong (it says what).
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from engines.account import account, compute_cpu
from engines.figures import Kind, Step, by_kind, paired, percentile
from engines.load import BYSTANDERS, Prompts, Throughput, Ttft, beside_bystanders, busy, first_token, saves_again, without_hits
from engines.side import Side, SideFailed, compute_cores
from report import Goal, at_least, at_most, ended, show
from stack import Stack
from stores.pegaflow_store import pegaflow_store

POOL_BYTES = 3 << 30
LENGTHS = (512, 2048, 4096)
BLOCK = 32
OTHERS_IDS = 512
SAVED = "pegaflow_pages_saved_total"


PHASES = ("ttft", "workload", "steps")


class Scale(NamedTuple):
    """How much of everything. `rounds` per start; `requests` of `ids` + `answer`, `at_once`; `others`: prompts beside bystanders,
    a round."""

    starts: int
    rounds: int
    runs: int
    requests: int
    ids: int
    answer: int
    at_once: int
    others: int


FULL = Scale(starts=3, rounds=2, runs=3, requests=8, ids=512, answer=24, at_once=4, others=12)
QUICK = Scale(starts=2, rounds=1, runs=2, requests=6, ids=384, answer=16, at_once=3, others=6)


class Found(NamedTuple):
    """Of one side, in the order of the rounds. Empty when it is made."""

    cold: dict[int, list[Ttft]]
    warm: dict[int, list[Ttft]]
    runs: list[Throughput]
    saves: list[Step]
    loads: list[Step]

    @classmethod
    def nothing(cls) -> Found:
        return cls(defaultdict(list), defaultdict(list), [], [], [])


def one_ttft(side: Side, other: Side, prompts: Prompts, found: Found) -> None:
    with busy(side, [other]):
        saves_again(side, prompts)
        for length in LENGTHS:
            prompt = prompts.fresh(length)
            found.cold[length].append(first_token(side, prompt))
            if side.with_connector:
                side.forget_local()
            before = _loaded(side)
            found.warm[length].append(first_token(side, prompt))
            pages, positions = (now - then for now, then in zip(_loaded(side), before, strict=True))
            if side.with_connector and (pages != length // BLOCK or positions != 1):
                raise SystemExit(
                    f"warm {length}: {pages:.0f} pages loaded, {positions:.0f} positions computed: not from the tier"
                )
        side.forget_local()


def one_steps(side: Side, other: Side, prompts: Prompts, scale: Scale, found: Found) -> None:
    with busy(side, [other]):
        saves_again(side, prompts)
        others = [prompts.fresh(OTHERS_IDS) for _ in range(scale.others)]
        before = side.total(SAVED)
        found.saves.extend(beside_bystanders(side, prompts, others))
        side.forget_local()  # returns when no save is under way any more
        _check_saved(side, before, scale.others * OTHERS_IDS // BLOCK)
        if side.with_connector:
            before = _loaded(side)[0]
            found.loads.extend(beside_bystanders(side, prompts, others))
            if (pages := _loaded(side)[0] - before) != scale.others * OTHERS_IDS // BLOCK:
                raise SystemExit(f"beside bystanders only {pages:.0f} pages were loaded")
            side.forget_local()


def _check_saved(side: Side, before: float, least: int) -> None:
    if side.with_connector and (pages := side.total(SAVED) - before) < least:
        raise SystemExit(f"only {pages:.0f} of at least {least} pages were saved: the cost of saving was not measured")


def _loaded(side: Side) -> tuple[float, float]:
    """Pages loaded and prompt positions computed so far, as the connector counts them."""
    return side.total("pegaflow_pages_loaded_total"), side.total("pegaflow_prompt_positions_computed_total")


def one_run(side: Side, other: Side, prompts: Prompts, scale: Scale, found: Found) -> None:
    with busy(side, [other]):
        saves_again(side, prompts)
        before = side.total(SAVED)
        run = without_hits(side, [prompts.fresh(scale.ids) for _ in range(scale.requests)], scale.answer, scale.at_once)
        side.forget_local()
        _check_saved(side, before, scale.requests * (scale.ids // BLOCK))
    if run.hits:
        raise SystemExit(f"{side.name}: {run.hits:.0f} hits in a workload without hits")
    found.runs.append(run)


def measure(sides: Sequence[Side], prompts: Prompts, scale: Scale, phases: Sequence[str], found: dict[str, Found]) -> None:
    """One start's rounds."""
    warmup = Found.nothing()
    orders = (sides, tuple(reversed(sides)))
    for side, other in zip(*orders, strict=True):
        one_run(side, other, prompts, scale, warmup)
    turn = 0
    for number in range(scale.rounds):
        for side, other in zip(orders[number % 2], orders[1 - number % 2], strict=True):
            if "ttft" in phases:
                one_ttft(side, other, prompts, found[side.name])
            if "steps" in phases:
                one_steps(side, other, prompts, scale, found[side.name])
        for _ in range(scale.runs if "workload" in phases else 0):
            for side, other in zip(orders[turn % 2], orders[1 - turn % 2], strict=True):
                one_run(side, other, prompts, scale, found[side.name])
            turn += 1
        print(f"round {number + 1} of {scale.rounds} done", file=sys.stderr, flush=True)


def ttft_rows(ours: Found, plain: Found) -> tuple[list[dict[str, Any]], list[Goal]]:
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    for length in LENGTHS:
        cold, warm = [one.ms for one in ours.cold[length]], [one.ms for one in ours.warm[length]]
        alone, local = [one.ms for one in plain.cold[length]], [one.ms for one in plain.warm[length]]
        ratio = paired(warm, cold)
        row: dict[str, Any] = {"ttft": f"{length} ids", "cold_ms": percentile(cold, 0.5), "warm_ms": percentile(warm, 0.5)}
        row |= {"warm/cold": ratio.median, "warm/cold_q1": ratio.low, "warm/cold_q3": ratio.high}
        row |= {"plain_cold_ms": percentile(alone, 0.5), "local_ms": percentile(local, 0.5)}
        against = paired(warm, alone).median  # our own cold time would make it better for being worse
        row |= {"warm/plain_cold": against, "cold/plain_cold": paired(cold, alone).median, "pairs": ratio.pairs}
        rows.append(row)
        if length == LENGTHS[-1]:
            goals.append(at_most(f"warm over plain vLLM's cold time to first token at {length} ids", against, 0.1))
    return rows, goals


def stage_rows(ours: Found) -> list[dict[str, Any]]:
    rows = []
    for length in LENGTHS:
        stages = [one.stages for one in ours.warm[length] if one.stages]
        row: dict[str, Any] = {"warm, where it goes (ms)": f"{length} ids"}
        rows.append(row | {name: percentile([each[name] for each in stages], 0.5) for name in stages[0]})
    return rows


def run_rows(ours: Found, plain: Found, starts: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    rates: dict[str, Callable[[Throughput], float]] = {
        "ids/s": lambda run: run.rate,
        "ids per CPU second of the compute thread": lambda run: run.tokens / compute_cpu(run),
        "ids per CPU second of everything": lambda run: run.tokens / run.cpu_seconds,
    }
    rows: list[dict[str, Any]] = []
    for what, rate in rates.items():
        these, those = [rate(run) for run in ours.runs], [rate(run) for run in plain.runs]
        ratio = paired(these, those)
        row: dict[str, Any] = {
            "workload without hits": what,
            "connector": percentile(these, 0.5),
            "plain": percentile(those, 0.5),
        }
        rows.append(row | {"ratio": ratio.median, "q1": ratio.low, "q3": ratio.high, "pairs": ratio.pairs})
    each = len(ours.runs) // starts
    for start in range(starts):
        part = slice(each * start, each * (start + 1))
        ratio = paired([run.rate for run in ours.runs[part]], [run.rate for run in plain.runs[part]])
        row = {"workload without hits": f"ids/s, start {start + 1}", "ratio": ratio.median, "q1": ratio.low, "q3": ratio.high}
        rows.append(row | {"pairs": ratio.pairs})
    return rows, [at_least("throughput without any hit, with the connector against without", rows[0]["ratio"], 0.99)]


def step_rows(ours: Found, plain: Found) -> list[dict[str, Any]]:
    with_saves, alone, with_loads = (
        by_kind(ours.saves, BYSTANDERS),
        by_kind(plain.saves, BYSTANDERS),
        by_kind(ours.loads, BYSTANDERS),
    )
    pairs = [
        ("decode, quiet", with_saves[Kind.QUIET], alone[Kind.QUIET]),
        ("decode behind a prefill (save)", with_saves[Kind.AFTER_PREFILL], alone[Kind.AFTER_PREFILL]),
        ("decode during a load", with_loads[Kind.LOADING], alone[Kind.QUIET]),
        (f"prefill of {OTHERS_IDS} beside decode", with_saves[Kind.PREFILL], alone[Kind.PREFILL]),
    ]
    rows = []
    for what, these, those in pairs:
        row: dict[str, Any] = {"steps (ms)": what}
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            mine, other = percentile(these, share), percentile(those, share)
            row |= {name: mine, f"plain_{name}": other, f"added_{name}": mine - other}
        rows.append(row | {"n": len(these), "plain_n": len(those)})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about six minutes")
    parser.add_argument("--starts", type=int, help="how often both engines are started; instead of the usual number")
    parser.add_argument("--rounds", type=int, help="of each start; instead of the usual number")
    parser.add_argument("--control", action="store_true", help="plain against plain: the noise of this machine")
    parser.add_argument("--only", choices=PHASES, action="append", help="leave the others out; may be repeated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path, help="cProfile of the engine core with the connector (CPU time, slower)")
    parser.add_argument("--logs", type=Path, help="keep the engines' logs and step journals in this folder")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends with it
    print("NOTE: clients, engine and tier share this machine's cores; only ratios within this run mean something.")
    print("Both engines: float32, eager, block size 32, prefix caching on; the side that is not measured is held by SIGSTOP.")
    cores = ", ".join(str(core) for core in compute_cores())
    print(f"Both compute on core {cores}; what else the machine has is for engine core, API server, connector, tier and clients.")
    scale = QUICK if arguments.quick else FULL
    if arguments.rounds:
        scale = scale._replace(rounds=arguments.rounds)
    if arguments.starts:
        scale = scale._replace(starts=arguments.starts)
    phases = arguments.only or ["workload"] if arguments.control else arguments.only or PHASES
    if arguments.control and list(phases) != ["workload"]:
        parser.error("--control has no pages to load: it is for the workload only")
    found = {name: Found.nothing() for name in ("connector", "plain")}
    prompts = Prompts(seed=7)
    for start in range(scale.starts):
        print(f"start {start + 1} of {scale.starts}", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            folder = arguments.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            services = None if arguments.control else stack.enter_context(Stack("a", POOL_BYTES, mover=True))
            ours = Side("connector", folder, pegaflow_store(services, tails=True) if services else None, arguments.profile)
            plain = Side("plain", folder, None)
            for side in (ours, plain) if start % 2 == 0 else (plain, ours):
                stack.enter_context(side).wait_ready()
            if services is not None:
                ours.profile_worker()
            for side in (ours, plain):
                side.hold()
            measure([ours, plain], prompts, scale, phases, found)
            ours.let_go()
            if services is not None:
                ours.profile_worker()
    if arguments.control:
        print("CONTROL: both engines are plain; `connector` is a second one without connector.")
    mine, other = found["connector"], found["plain"]
    tables: list[list[dict[str, Any]]] = []
    goals: list[Goal] = []
    if "ttft" in phases:
        rows, goals = ttft_rows(mine, other)
        tables += [rows, stage_rows(mine)]
    if "workload" in phases:
        rows, more = run_rows(mine, other, scale.starts)
        goals += more
        tables += [rows, account(mine.runs, other.runs)]
    if "steps" in phases:
        tables.append(step_rows(mine, other))
    show(tables, goals, arguments.json)
    return ended(goals)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SideFailed as why:
        sys.exit(str(why))
