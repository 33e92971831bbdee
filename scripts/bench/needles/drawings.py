"""Drawings: scores and times to a first token over the length of the prompt, a line for each way."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from charts.lines import Axis, draw

from .path import Way
from .score import Part, percent_told

Points = list[tuple[float, float]]


def charts(parts: Sequence[Part]) -> dict[str, str]:
    """File name → SVG. Needles only for scores; without needles there is no such drawing."""
    told: dict[str, Points] = {}
    first: dict[str, Points] = {}
    for part in sorted(parts, key=lambda part: part.ids):
        if part.prompts[0].secret:
            told.setdefault(str(part.way), []).append((part.ids, percent_told(part)))
        if times := [answer.first_after for answer in part.answers if answer.first_after is not None]:
            first.setdefault(str(part.way), []).append((part.ids, median(times) * 1e3))
    found = {}
    if told:
        title = "Pass words told (lines that lie on each other: equal)"
        found["accuracy_score.svg"] = draw(title, Axis("ids in the prompt"), Axis("% told"), _ordered(told))
    if first:
        x, y = Axis("ids in the prompt", log=True), Axis("ms", log=True)
        found["accuracy_first_token.svg"] = draw("Time to the first token, one request at a time", x, y, _ordered(first))
    return found


def _ordered(series: dict[str, Points]) -> dict[str, Points]:
    return {str(way): series[way] for way in Way if way in series}
