"""What was found as charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from engines.found import Found, Twice
from engines.rows import PLAIN, RATES

from charts.lines import Axis, draw


def charts(found: Found, sides: Sequence[str], lengths: Sequence[int], folder: Path) -> list[Path]:
    """Writes them; a chart without any point is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"cold": _points(found, PLAIN, lengths, lambda each: each.cold)}
    lines |= {f"warm, {side}": _points(found, side, lengths, lambda each: each.warm) for side in sides}
    rounds = {
        side: [
            (float(number + 1), 100.0 * (1.0 - ratio))
            for number, ratio in enumerate(found.run_ratios(side, PLAIN, RATES["ids/s"]))
        ]
        for side in sides
        if side != PLAIN
    }
    drawn = {
        "peers_ttft.svg": ("Time to first token", Axis("ids of the prompt"), Axis("ms", log=True), lines),
        "peers_no_hit.svg": ("Throughput without hits", Axis("run"), Axis("% below plain vLLM"), rounds),
    }
    paths = []
    for name, chart in drawn.items():
        try:
            text = draw(*chart)
        except ValueError:
            continue
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    return paths


def _points(found: Found, side: str, lengths: Sequence[int], what: Callable[[Twice], float]) -> list[tuple[float, float]]:
    return [(float(ids), found.median(side, ids, what)) for ids in lengths if found.twice(side, ids)]
