"""PegaFlow inside vLLM beside LMCache's server, Mooncake Store and no store at all, in one run on this machine.

    scripts/bench/peers [--quick] [--starts 2] [--rounds 3] [--side NAME]… [--only ttft|no-hit] [--json FILE] [--svg FOLDER]

NOTE: clients, engines and stores share this machine's cores (two here). Ratios are taken within a round, of things measured
seconds apart; absolute figures are not comparable between machines or runs.

One engine for each store: the same model (SmolLM2-135M), float32, eager, 32 ids a block, vLLM's own prefix cache on, the same
cores for computing. All are there at the same time, but only one is ever busy; the others and their stores are held by SIGSTOP
and take no cycle. In each round every side is asked once; the one that was first is last in the next. Where an engine's memory
lies is drawn when it starts and moves its throughput by up to 3 %, so all are started anew `--starts` times.

plain      vLLM without any connector; its second time comes from its own cache
pegaflow   PegaKVConnector, one tier, one metaserver
lmcache    LMCacheMPConnector and LMCache's server, chunks of 256 ids as it has them by itself
mooncake   MooncakeStoreConnector, Mooncake's master, the memory in the engine's process as vLLM has it by itself
offloading vLLM's OffloadingConnector, where it starts (with --quick only where --side names it)

ttft       a prompt of 1,024 and of 4,096 random ids that nobody has seen (cold), and the same again (warm) after POST
           /reset_prefix_cache, which empties vLLM's own cache only. vLLM's counters must say that at most 256 ids of it were
           computed and none came from its own cache, and the store's counters that it loaded
no-hit     unique prompts, several at once, prefill and decode, no hit (checked): ids per second over plain vLLM's in the same
           round. Afterwards the first and the last prompt must come from the store: what does not save costs nothing

Before anything is measured each side answers both lengths twice, and the second answer must be the first: eight tokens and their
probabilities. Where a store has not yet saved what comes again, that round of this side is dropped and counted (`late`); three in
a row are a failure. A peer that cannot be had, does not start or fails a check is listed with the reason, and the run goes on.
When plain vLLM or PegaFlow fails, it ends, as on a signal, and what was found until then is shown. The JSON is written after each
round. Exit codes: 0 all goals are met, 3 one is missed or a peer is left out (offloading may be), 1 ended before its time, 130
interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from engines.found import Found, Place
from engines.load import Prompts
from engines.rows import run_rows, stage_rows, twice_rows
from engines.side import Side, compute_cores
from report import ended as exit_code
from report import show, write
from stores.aims import goals
from stores.alive import OFFLOADING, SIDES, Alive, Ended
from stores.asked import ask_twice, awake, check_answers, no_hit
from stores.charts import charts

LENGTHS: Final = (1024, 4096)
PARTS: Final = ("ttft", "no-hit")
BYTES_AN_ID: Final = 30 * 2 * 3 * 64 * 4
"""Of the model's KV cache: layers, keys and values, heads, their width, float32."""
SPARE: Final = 1.3
"""Of a pool, so that no store evicts: they begin at 80 to 95 % of what they have."""
ENGINE_BYTES: Final = 3 << 30
"""Of API server, engine core and worker."""
STEP_BYTES: Final = 1 << 30


class Scale(NamedTuple):
    """How much of everything. `runs` without hits in each of the `rounds`: `requests` of `ids` + `answer`, `at_once`."""

    starts: int
    rounds: int
    runs: int
    requests: int
    ids: int = 512
    answer: int = 24
    at_once: int = 3

    @property
    def pool_bytes(self) -> int:
        """For all that is saved in one start."""
        run = self.requests * (self.ids + self.answer)
        turns = (2 * len(LENGTHS) + 1) * 512 + sum(LENGTHS)
        saved = (self.rounds * (turns + self.runs * (run + 512)) + turns) * BYTES_AN_ID
        return (int(SPARE * saved) // STEP_BYTES + 1) * STEP_BYTES


FULL = Scale(starts=2, rounds=3, runs=2, requests=6)
QUICK = Scale(starts=1, rounds=1, runs=1, requests=6)


def one_start(
    start: int, alive: Alive, scale: Scale, parts: Sequence[str], prompts: Prompts, found: Found, done: Callable[[], None]
) -> None:
    """All rounds of a start; `alive` has been started. `done` is called after each round. Raises Ended."""

    def check(side: Side) -> None:
        awake(side, prompts)
        for ids in LENGTHS:
            check_answers(side, prompts.fresh(ids))

    def twice(side: Side, turn: int) -> None:
        awake(side, prompts)
        for ids in LENGTHS:
            found.add_twice(side.name, Place(start, turn), ask_twice(side, prompts.fresh(ids)))
        side.forget_local()

    def run(side: Side, turn: int) -> None:
        awake(side, prompts)
        wanted = [prompts.fresh(scale.ids) for _ in range(scale.requests)]
        found.add_run(side.name, Place(start, turn), no_hit(side, wanted, scale.answer, scale.at_once))

    for name in alive.names:
        while alive.turn(name, check):
            pass  # it was late: with other prompts, until it is not, or has failed
    _told("answers checked")
    for number in range(scale.rounds):
        if "ttft" in parts:
            for name in _turned(alive.names, number):
                away = (partial(what, name, Place(start, number), twice=True) for what in (found.forget, found.drop))
                alive.turn(name, partial(twice, turn=number), *away)
        for turn in range(number * scale.runs, (number + 1) * scale.runs) if "no-hit" in parts else ():
            for name in _turned(alive.names, turn):
                away = (partial(what, name, Place(start, turn), twice=False) for what in (found.forget, found.drop))
                alive.turn(name, partial(run, turn=turn), *away)
        done()
        _told(f"round {number + 1} of {scale.rounds} done")


def _turned(names: Sequence[str], number: int) -> list[str]:
    shift = number % max(1, len(names))
    return [*names[shift:], *names[:shift]]


def _room(sides: Sequence[str], pool_bytes: int) -> None:
    """Raises SystemExit when the machine has no memory for them; without `offloading`, which is not known to start at all."""
    sides = [side for side in sides if side != OFFLOADING]
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    needed = len(sides) * ENGINE_BYTES + (len(sides) - 1) * pool_bytes
    if needed > free:
        gib = 1 << 30
        raise SystemExit(f"{', '.join(sides)} need {needed / gib:.1f} GiB and {free / gib:.1f} are free: name fewer with --side")


def _told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one start, one round: about six minutes")
    parser.add_argument("--starts", type=int, help="how often all engines are started; instead of the usual number")
    parser.add_argument("--rounds", type=int, help="of each start; instead of the usual number")
    parser.add_argument("--side", choices=SIDES, action="append", help="only these; may be repeated")
    parser.add_argument("--only", choices=PARTS, action="append", help="leave the other out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER")
    parser.add_argument("--logs", type=Path, help="keep the engines' logs and step journals in this folder")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)  # what was started ends with it, and what was found is shown
    scale = QUICK if arguments.quick else FULL
    scale = scale._replace(starts=arguments.starts or scale.starts, rounds=arguments.rounds or scale.rounds)
    usual = [side for side in SIDES if not arguments.quick or side != OFFLOADING]
    sides, parts = arguments.side or usual, arguments.only or PARTS
    print(f"NOTE: clients, engines and stores share {os.cpu_count()} cores; only ratios within this run mean something.")
    cores = ", ".join(str(core) for core in compute_cores())
    print(f"All engines compute on core {cores}, one at a time; a store has {scale.pool_bytes >> 30} GiB.", flush=True)
    _room(sides, scale.pool_bytes)
    found, prompts = Found(), Prompts(seed=11)
    about: dict[str, str] = {}
    missing = {side: "--quick" for side in SIDES if side not in usual and not arguments.side}
    ended, code = "", 0
    failed: Exception | None = None

    def results(why: str) -> list[list[dict[str, Any]]]:
        """The tables of what was found until now. `why` there is no more of it."""
        tables: list[list[dict[str, Any]]] = [
            twice_rows(found, sides, LENGTHS),
            stage_rows(found, sides, LENGTHS),
            run_rows(found, sides, scale.starts),
            [{"peer": name, "as": text} for name, text in about.items()],
            [{"left out": name, "because": text} for name, text in missing.items()],
            [{"doubt": why}] if why else [],
        ]
        return [table for table in tables if table]

    def done() -> None:
        if arguments.json is not None:
            write(
                results("the benchmark has not ended: this is what was found until now"),
                goals(found, LENGTHS[-1]),
                arguments.json,
            )

    try:
        with ExitStack() as stack:
            folder = arguments.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.mkdir(parents=True, exist_ok=True)
            for start in range(scale.starts):
                _told(f"start {start + 1} of {scale.starts}")
                with Alive(folder, scale.pool_bytes, about, missing) as alive:
                    alive.start([side for side in _turned(sides, start) if side not in missing])
                    one_start(start, alive, scale, parts, prompts, found, done)
    except Ended as why:
        ended, code = f"the rest was not measured: {why}".partition("\n")[0], 1
        _told(f"peers: {why}")
    except KeyboardInterrupt:
        ended, code = "the rest was not measured: interrupted", 130
        _told("peers: interrupted")
    except Exception as error:  # a fault of the benchmark takes nothing away from what was found before it
        ended, failed = f"the rest was not measured: {type(error).__name__}: {error}", error
    show(results(ended), goals(found, LENGTHS[-1]), arguments.json)
    if arguments.svg is not None:
        for path in charts(found, sides, LENGTHS, arguments.svg):
            print(f"drawn: {path}")
    if failed is not None:
        raise failed
    return code or exit_code(goals(found, LENGTHS[-1]), missing=bool(missing.keys() - {OFFLOADING}))


def _terminated(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
