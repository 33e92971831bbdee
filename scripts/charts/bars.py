"""A chart of lying bars in groups as an SVG text: a title, an axis (linear or logarithmic), each bar with its value."""

from __future__ import annotations

import math
from collections.abc import Mapping

from charts.lines import COLOURS, Axis, span, ticks
from charts.marks import box, line, page, text

LEFT, RIGHT, TOP, BOTTOM = 290, 90, 58, 45
LENGTH, BAR, GAP = 460, 15, 12
"""Of the axis; a bar's height; between two groups."""
LEGEND = 38


def draw(title: str, axis: Axis, groups: Mapping[str, Mapping[str, float]], at: float | None = None) -> str:
    """`groups`: name → (series → value). `at`: where a line is drawn, a goal say. Raises ValueError if there is no bar to draw.

    Bars of a logarithmic axis begin at its lower end, others at 0.
    """
    shown = {name: {who: value for who, value in bars.items() if axis.shows(value)} for name, bars in groups.items()}
    shown = {name: bars for name, bars in shown.items() if bars}
    values = [value for bars in shown.values() for value in bars.values()]
    if not values:
        raise ValueError(f"{title}: nothing to draw")
    series = list(dict.fromkeys(who for bars in shown.values() for who in bars))
    colours = {who: COLOURS[number % len(COLOURS)] for number, who in enumerate(series)}
    low, high = span([axis.place(value) for value in [*values, *([at] if at is not None else [])]], axis)

    def place(value: float) -> float:
        return LEFT + LENGTH * (axis.place(value) - low) / (high - low)

    height = sum(BAR * len(bars) + GAP for bars in shown.values())
    bottom = TOP + height
    out = [*page(LEFT + LENGTH + RIGHT, bottom + BOTTOM), text(16, 22, title, "start", size=14)]
    x = 16.0
    for who in series if len(series) > 1 else ():
        out += [box(x, LEGEND - 10, 12, 12, colours[who]), text(x + 17, LEGEND, who, "start")]
        x += 17 + 6.6 * len(who) + 18
    for value in ticks(low, high, axis):
        out += [line(place(value), TOP, place(value), bottom, "#dddddd"), text(place(value), bottom + 16, f"{value:g}", "middle")]
    y = TOP + GAP / 2
    start = LEFT if axis.log else place(0.0)
    for name, bars in shown.items():
        out.append(text(LEFT - 8, y + BAR * len(bars) / 2 + 4, name, "end"))
        for who, value in bars.items():
            left, right = sorted((start, place(value)))
            out += [box(left, y + 1, max(1.0, right - left), BAR - 2, colours[who])]
            out += [text(right + 5, y + BAR - 4, _said(value), "start", size=11)]
            y += BAR
        y += GAP
    if at is not None:
        out.append(line(place(at), TOP, place(at), bottom, "#333333"))
    out += [line(start, TOP, start, bottom, "#333333"), text(LEFT + LENGTH / 2, bottom + 34, axis.name, "middle")]
    return "\n".join([*out, "</svg>"]) + "\n"


def _said(value: float) -> str:
    """Three digits that count, and no powers of ten."""
    if value == 0 or not math.isfinite(value):
        return "0"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
