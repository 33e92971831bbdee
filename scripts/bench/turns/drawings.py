"""The charts: latencies by turn, and how many requests meet the SLO as it is tightened or relaxed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from charts.lines import Axis, draw

from .figures import Slo, latencies, share_within
from .record import Run
from .shape import Shape

SCALES: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
NAMES: Final = {"ttft": "Time to first token", "itl": "Time between tokens"}


def drawings(runs: Sequence[Run], shape: Shape, slo: Slo) -> dict[str, str]:
    """File name → SVG, of the runs of one loop in its first round."""
    runs = [run for run in runs if run.round == min(run.round for run in runs)]
    loop = runs[0].arrival
    found = {}
    for name, title in NAMES.items():
        series = {f"{run.kind} {share}": _by_turn(run, shape, name, share) for run in runs for share in ("p50", "p99")}
        found[f"multiturn_{name}_{loop}.svg"] = draw(f"{title}, {loop} loop", Axis("turn"), Axis("ms", log=True), series)
    series = {
        str(run.kind): [(s, share_within(run.good(shape.answer), shape.requests, slo.times(s))) for s in SCALES] for run in runs
    }
    title = f"Share of requests within the SLO, {loop} loop"
    found[f"multiturn_slo_{loop}.svg"] = draw(title, Axis("times the SLO", log=True), Axis("share"), series)
    return found


def _by_turn(run: Run, shape: Shape, name: str, share: str) -> list[tuple[float, float]]:
    points = []
    for turn in range(shape.turns):
        if heard := [one for one in run.good(shape.answer) if one.turn == turn]:
            points.append((turn + 1.0, getattr(getattr(latencies(heard), name), share)))
    return points
