"""One benchmark of two checkouts in turns: what a change has brought.

    scripts/bench/versus --old CHECKOUT [--rounds 3] [--only TEXT] [--json FILE] NAME [OPTION …]
    scripts/bench/versus --old ../before tier --quick

Runs `scripts/bench/NAME OPTION …` of the old checkout and of this one, old new new old old new …, and prints the medians of each
figure and their ratio. `apart`: the largest over the smallest run of one side; a ratio nearer to 1 than that means little. The
checkouts have environments of their own (`git worktree add ../before COMMIT` makes one; its scripts set it up).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pairs.ratios import OtherShape, ratios
from report import show

from environment.checkout import CHECKOUT
from environment.complaint import EX_UNAVAILABLE
from environment.progress import say

EX_MISSED = 1
"""A benchmark ends so when a goal is missed or something is doubtful; it has written its figures all the same."""


def run(checkout: Path, name: str, options: list[str], folder: Path, number: int) -> list[dict[str, Any]]:
    """Raises OSError, ValueError or RuntimeError when there are no figures."""
    out = folder / f"{number}.json"
    done = subprocess.run(
        [checkout / "scripts" / "bench" / name, *options, "--json", out], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
    )
    if done.returncode not in (0, EX_MISSED) or not out.exists():
        raise RuntimeError(f"{name} of {checkout.name} ended with {done.returncode} and has no figures")
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--old", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--only", default="", metavar="TEXT", help="figures with this in their name")
    parser.add_argument("--json", type=Path)
    parser.add_argument("name", help="of a benchmark under scripts/bench")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="for it")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds: one at least")
    sides = {"old": asked.old.absolute(), "new": CHECKOUT}
    for side, checkout in sides.items():
        if not (checkout / "scripts" / "bench" / asked.name).is_file():
            parser.error(f"the {side} checkout has no scripts/bench/{asked.name}")
    found: dict[str, list[list[dict[str, Any]]]] = {side: [] for side in sides}
    try:
        with tempfile.TemporaryDirectory(prefix="pegaflow-versus-") as folder:
            for number in range(asked.rounds):
                for side in sides if number % 2 == 0 else reversed(sides):
                    say(f"round {number + 1} of {asked.rounds}, {side}: {asked.name}")
                    found[side].append(run(sides[side], asked.name, asked.options, Path(folder), 2 * number + (side == "new")))
        rows = ratios(found["old"], found["new"], asked.only)
    except (OSError, ValueError, RuntimeError, OtherShape) as error:
        print(f"versus: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    except KeyboardInterrupt:
        print("versus: interrupted", file=sys.stderr)
        return 130
    show([rows], [], asked.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
