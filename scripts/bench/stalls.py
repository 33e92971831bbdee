"""The longest event: for how long does one event keep everybody else of a tier or a metaserver waiting, with a million pages?

    scripts/bench/stalls [--pages 1000000] [--quick] [--only WORD] [--json FILE]

The pure cores run as in the service (its collector settings, too), without sockets: each row is one thing that happens, the event
that took longest in it, and how many events it took. What is done bit by bit shows as many short events. About 5 minutes, 4 GB;
`--quick` (50,000 pages) only shows that it works. Rows over LONG_MS are marked.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import show

PARTS = ("memory", "holders", "adopted", "disk", "catalogue")
LONG_MS = 20.0


def part(name: str, pages: int) -> list[dict[str, Any]]:
    """One part of it in a process of its own, so that each begins with a fresh heap."""
    print(f"stalls: {name}, {pages} pages", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--part", name, "--pages", str(pages)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="parts whose name has this in it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        rows = importlib.import_module(f"stalled.{options.part}").run(options.pages)
        json.dump(rows, sys.stdout)
        return 0
    pages = 50_000 if options.quick else options.pages
    tables = []
    for name in PARTS:
        if options.only in name:
            rows = part(name, pages)
            tables.append([{"part": name, **row, "": "LONG" if row["longest_ms"] > LONG_MS else ""} for row in rows])
    show(tables, [], options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
