"""One benchmark of two checkouts in turns: what a change has brought.

    scripts/bench/versus --old CHECKOUT [--rounds 3] [--only TEXT] [--json FILE] [--svg FOLDER] NAME [OPTION …]
    scripts/bench/versus --old ../before tier --quick

Runs `scripts/bench/NAME OPTION …` of the old checkout and of this one, old new new old old new …, and prints the medians of each
figure and their ratio. `apart`: the largest over the smallest run of one side; a ratio nearer to 1 than that means little. The
checkouts have environments of their own (`git worktree add ../before COMMIT` makes one; its scripts set it up).

Each side runs the benchmark of its own checkout, so where that, or the configuration, is not the same in both, the figures may
differ for that alone: a row `doubt` says so, as it does for whatever a run says against itself; a missed goal is no doubt.
What fails takes only its own round away.

Exit codes: 0 nothing is doubtful, 1 something is, 69 there are no figures, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from drawn import Bars, draw_bars
from pairs.checkouts import about, differing, foreign
from pairs.ratios import OtherShape, ratios, said_against, skipped
from report import EX_MISSED, EX_WRONG, ended, show

from charts.lines import Axis
from environment.checkout import CHECKOUT
from environment.complaint import EX_UNAVAILABLE
from environment.progress import say

MEASURED: Final = (0, EX_MISSED, EX_WRONG)
"""A benchmark that ends so has written its figures. A goal or a peer that is missing is nothing against them."""
INTERRUPTED: Final = 130
CHARTS: Final = [Bars("versus", "New over old", Axis("ratio", log=True), ["row", "figure"], ["new/old"], at=1.0)]
NAMED: Final = 5
"""Files that a doubt names."""


class Run(NamedTuple):
    """`code`: how it ended."""

    rows: list[dict[str, Any]]
    code: int


def run(checkout: Path, name: str, options: list[str], folder: Path, number: int) -> Run:
    """Raises OSError, ValueError, LookupError or RuntimeError when there are no figures."""
    out = folder / f"{number}.json"
    done = subprocess.run(
        [checkout / "scripts" / "bench" / name, *options, "--json", out], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
    )
    if done.returncode not in MEASURED or not out.exists():
        raise RuntimeError(f"{name} of {checkout.name} ended with {done.returncode} and has no figures")
    return Run(json.loads(out.read_text(encoding="utf-8"))["rows"], done.returncode)


def tables(
    sides: dict[str, Path], found: dict[str, list[Run]], name: str, only: str, stopped: str
) -> tuple[list[list[dict[str, Any]]], list[str]]:
    """Of whole rounds, and what is doubtful. `stopped`: why there are no more of them. Raises OtherShape."""
    whole = min(len(runs) for runs in found.values())
    old, new = ([each.rows for each in found[side][:whole]] for side in ("old", "new"))
    doubts = [
        f"{side}, run {number}: {text}"
        for side, runs in found.items()
        for number, each in enumerate(runs[:whole], start=1)
        for text in said_against(each.rows, 0 if each.code == EX_MISSED else each.code)
    ]
    if differ := differing(sides["old"], sides["new"], name):
        more = f" and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
        doubts.append(f"the benchmark itself is not the same: {', '.join(differ[:NAMED])}{more}")
    doubts += [why for checkout in sides.values() if (why := foreign(checkout))]
    doubts += [f"{whole} rounds only: {stopped}"] if stopped else []
    found_rows = [
        [about(side, checkout) for side, checkout in sides.items()],
        ratios(old, new, only),
        [{"not in all runs": text} for text in skipped(old, new)],
        [{"doubt": text} for text in doubts],
    ]
    return [rows for rows in found_rows if rows], doubts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--old", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--only", default="", metavar="TEXT", help="figures with this in their name")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the charts there")
    parser.add_argument("name", help="of a benchmark under scripts/bench")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="for it")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error("--rounds: one at least")
    sides = {"old": asked.old.absolute(), "new": CHECKOUT}
    for side, checkout in sides.items():
        if not (checkout / "scripts" / "bench" / asked.name).is_file():
            parser.error(f"the {side} checkout has no scripts/bench/{asked.name}")
    for checkout in sides.values():
        if why := foreign(checkout):
            print(f"versus: {why}", file=sys.stderr)
            return EX_UNAVAILABLE
    found: dict[str, list[Run]] = {side: [] for side in sides}
    stopped, code = "", 0
    with tempfile.TemporaryDirectory(prefix="pegaflow-versus-") as folder:
        try:
            for number in range(asked.rounds):
                for side in sides if number % 2 == 0 else reversed(sides):
                    say(f"round {number + 1} of {asked.rounds}, {side}: {asked.name}")
                    found[side].append(run(sides[side], asked.name, asked.options, Path(folder), 2 * number + (side == "new")))
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            stopped, code = str(error), EX_UNAVAILABLE
        except KeyboardInterrupt:
            stopped, code = "interrupted", INTERRUPTED
    if stopped:
        print(f"versus: {stopped}", file=sys.stderr)
    if not all(found.values()):
        return code
    try:
        shown, doubts = tables(sides, found, asked.name, asked.only, stopped)
    except OtherShape as error:
        print(f"versus: {error}", file=sys.stderr)
        return EX_UNAVAILABLE
    show(shown, [], asked.json)
    draw_bars(shown, CHARTS, asked.svg)
    return code if code == INTERRUPTED else ended([], wrong=bool(doubts))


if __name__ == "__main__":
    sys.exit(main())
