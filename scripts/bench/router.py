"""What the router costs: added latency, answers and chunks per second, memory, beside nginx and vllm-router in the same run.

    scripts/bench/router [--quick] [--rounds 5] [--seconds 1] [--requests 100000] [--endpoint chat|completions] [--tokens 32]
                         [--only load|memory] [--no-peers] [--json FILE] [--svg FOLDER]

NOTE: clients, routers and backends share this machine's cores (two here). Differences and ratios are taken within a round, of
things measured seconds apart; figures per core come from the CPU time of the router's process.

load       whole and streamed answers of a backend that answers at once, 1, 16 and 64 at once, through each router in turns:
           pegaflow with one engine (mixed), as P/D, as P/D with the first token forwarded; nginx; vllm-router mixed and P/D
memory     resident bytes of the mixed and of the first-token router after a warm-up and over many requests

"Added" is p50 through a router minus p50 of the backend alone in the same round. Split requests ask two backends, and that is
in what they add. Every router has to give right answers first, and an answer with fewer or more events ends the benchmark.

Exit codes: 0 all goals are met, 3 one is missed or a peer is left out though --no-peers does not say so.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, Final

from children import Children
from drawn import Bars, draw_bars
from helper import Helper
from report import Goal, ended, left_out, show
from routers.aims import goals, memory_goal
from routers.figures import Rounds, Span
from routers.memory import memory
from routers.question import PATHS, Question
from routers.rows import OURS, OURS_FIRST, memory_row, rows
from routers.sides import Side, start_sides

from charts.lines import Axis

CONCURRENCY: Final = (1, 16, 64)
PARTS: Final = ("load", "memory")
LOADED: Final = ["answers", "at once", "through"]
CHARTS: Final = (
    Bars("router_added", "What is added to the backend's time", Axis("µs, p50"), LOADED, ["added p50 us", "added first byte us"]),
    Bars("router_cores", "Answers for a second of the router's CPU", Axis("answers/s/core"), LOADED, ["requests/s/core"]),
)
WARM: Final = 5000
"""Requests before memory is looked at."""


def loads(load: Helper, sides: list[Side], question: Question, concurrency: int, rounds: int, seconds: float) -> Rounds:
    """Every side once in each round; the one that was first is last in the next."""
    found = Rounds()
    for number in range(rounds):
        shift = number % len(sides)
        for side in sides[shift:] + sides[:shift]:
            order = {**question._asdict(), "port": side.port, "pids": side.pids}
            found.add(side.name, Span(**load.do(**order, concurrency=concurrency, seconds=seconds)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load in each round")
    parser.add_argument("--requests", type=int, default=100_000, help="over which memory is looked at")
    parser.add_argument("--endpoint", choices=list(PATHS), default="chat")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer, each a chunk of its own when it is streamed")
    parser.add_argument("--quick", action="store_true", help="two rounds of 0.3 s, 4,000 requests")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable")
    parser.add_argument("--no-peers", action="store_true", help="neither nginx nor vllm-router")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the charts there")
    arguments = parser.parse_args()
    rounds, seconds, requests = arguments.rounds, arguments.seconds, arguments.requests
    if arguments.quick:
        rounds, seconds, requests = 2, 0.3, 4000
    parts = arguments.only or PARTS
    print(f"clients, routers and backends share {os.cpu_count()} cores: compare what stands in one run", flush=True)
    tables: list[list[dict[str, Any]]] = []
    met: list[Goal] = []
    whole, streamed = (Question(arguments.endpoint, stream, arguments.tokens) for stream in (False, True))
    with Children() as children:
        sides, missing, about = start_sides(children, [whole, streamed], peers=not arguments.no_peers)
        load = children.helper([sys.executable, "-m", "routers.load"]).ready()
        for question in (whole, streamed) if "load" in parts else ():
            table: list[dict[str, Any]] = []
            for concurrency in CONCURRENCY:
                found = loads(load, sides, question, concurrency, rounds, seconds)
                table += rows(question.stream, concurrency, found)
                met += goals(question.stream, concurrency, found)
                print(f"  {question.endpoint}, stream {question.stream}, {concurrency} at once: done", flush=True)
            tables.append(table)
        table = []
        for side in sides if "memory" in parts else ():
            if side.name in (OURS, OURS_FIRST):
                row = memory_row(side.name, WARM, memory(load, side, arguments.endpoint, WARM, requests))
                table.append(row)
                met.append(memory_goal(side.name, row["bytes/request"]))
                print(f"  memory of {side.name}: done", flush=True)
        tables.append(table)
    tables += [[{"peer": name, "as": text} for name, text in about.items()], left_out(missing)]
    show([table for table in tables if table], met, arguments.json)
    draw_bars(tables, CHARTS, arguments.svg)
    return ended(met, missing=bool(missing) and not arguments.no_peers)


if __name__ == "__main__":
    sys.exit(main())
