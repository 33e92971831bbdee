"""scripts/simulate: PegaFlow with many nodes, in simulated time, on the real state machines.

    scripts/simulate [STUDY…] [--nodes 8,32,64,128,512] [--quick] [--costs measured|default] [--json FILE] [--svg FOLDER]
    scripts/simulate validate [--rounds 60]      the same script on two real tiers and simulated, side by side

STUDY: scale, replicas, recovery, remedies, levels, grains; none: all. --set NAME=VALUE changes a figure of hardware, model or
load by its name in scripts/simulation/figures.py. What comes out and what went in: docs/scaling.md.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import as_json, head, put, show

from simulation import report
from simulation.cluster import Setup
from simulation.costs import Costs
from simulation.measure import measured
from simulation.settings import changed, check
from simulation.studies import STUDIES, run

NODES = "8,32,64,128,512"


def _costs_rows(costs: Costs) -> list[dict[str, Any]]:
    lines = {"receive": costs.receive, "send": costs.send, "slot table": costs.store, **dict(sorted(costs.handle.items()))}
    rows = [{"cost": name, "us": line.fixed * 1e6, "us per key": line.each * 1e6} for name, line in lines.items()]
    return [*rows, {"cost": "waking up", "us": costs.wake * 1e6, "us per key": 0.0}]


def _told(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", nargs="*", help=f"{', '.join(STUDIES)}, or validate; none: all studies")
    parser.add_argument("--nodes", default="", help=f"comma separated, default {NODES}")
    parser.add_argument("--seconds", type=float, default=12.0, help="of simulated time")
    parser.add_argument("--warm", type=float, default=8.0, help="of these, the first that do not count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60, help="of the validation")
    parser.add_argument("--quick", action="store_true", help="8 and 16 nodes, a few seconds, for CI")
    parser.add_argument("--costs", choices=("measured", "default"), default="measured")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    check(options.study)
    costs = measured(options.quick) if options.costs == "measured" else Costs()
    if options.study == ["validate"]:
        from simulation.validation import validated  # it starts processes

        compared, different = validated(costs, options.rounds)
        show([_costs_rows(costs), *compared], [], None)
        if options.json is not None:
            _write(options.json, [row for rows in compared for row in rows], costs)
        return 1 if different else 0
    if not 0 <= options.warm < options.seconds:
        raise SystemExit("bad_times: --warm is less than --seconds: nothing would be counted")
    setup = Setup(seconds=options.seconds, warm=options.warm, seed=options.seed, costs=costs)
    nodes = [int(count) for count in (options.nodes or ("8,16" if options.quick else NODES)).split(",")]
    if options.quick:
        setup = replace(setup, seconds=3.0, warm=1.0)
    for text in options.set:
        setup = changed(setup, text)
    gc.set_threshold(200_000, 20, 100)  # PERF: half a million pages are no garbage, but are looked at again and again
    tables: list[list[dict[str, Any]]] = [_costs_rows(costs)]
    rows: list[dict[str, Any]] = []

    def done(row: dict[str, Any]) -> None:
        rows.append(row)
        _told(f"{row['study']}, {row['what']}: {row['wall s']:.0f} s, {row['events']} events")
        if options.json is not None:
            _write(options.json, rows, costs)  # after each run: the next one may take minutes

    for study in options.study or STUDIES:
        found, shares = run(study, setup, nodes, done)
        tables += [report.table(study, found), *([shares] if study == "scale" else [])]
    show(tables, [], None)
    if options.svg is not None:
        for path in report.charts(rows, options.svg):
            _told(str(path))
    return 0


def _write(path: Path, rows: list[dict[str, Any]], costs: Costs) -> None:
    put(path, as_json({**head(), "costs": _costs_rows(costs), "rows": rows}))


if __name__ == "__main__":
    sys.exit(main())
