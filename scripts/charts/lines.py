"""A chart of lines as an SVG text: a title, two axes with ticks (linear or logarithmic), a legend. No dependencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from charts.marks import line, page, text

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 55


@dataclass(frozen=True, slots=True)
class Axis:
    """`log`: of positive values only; others are left out of the chart."""

    name: str
    log: bool = False

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self.log)

    def place(self, value: float) -> float:
        return math.log10(value) if self.log else value


def ticks(low: float, high: float, axis: Axis) -> list[float]:
    """Round values from `low` to `high`, both as `place` gives them."""
    if axis.log:
        powers = range(math.floor(low), math.ceil(high) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        found = [step * 10.0**power for power in powers for step in steps]
    else:
        raw = (high - low) / 6 or 1.0
        step = min((m * 10.0 ** math.floor(math.log10(raw)) for m in (1, 2, 5, 10)), key=lambda s: abs(s - raw))
        found = [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return [value for value in found if low - 1e-9 <= axis.place(value) <= high + 1e-9]


def span(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """From where to where the axis goes, for values as `place` gives them; a linear one has 0 in it."""
    low, high = min(values), max(values)
    if not axis.log:
        low = min(low, 0.0)
    pad = 0.05 * (high - low) or 0.5
    return (low - pad if axis.log else low), high + pad


def draw(title: str, x: Axis, y: Axis, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """`series`: name → points (x, y), drawn in the given order. Raises ValueError if there is no point to draw."""
    shown = {name: [p for p in points if x.shows(p[0]) and y.shows(p[1])] for name, points in series.items()}
    every = [point for points in shown.values() for point in points]
    if not every:
        raise ValueError(f"{title}: nothing to draw")
    x0, x1 = span([x.place(p[0]) for p in every], x)
    y0, y1 = span([y.place(p[1]) for p in every], y)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        across = (x.place(point[0]) - x0) / (x1 - x0)
        up = (y.place(point[1]) - y0) / (y1 - y0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    out = [*page(WIDTH, HEIGHT), text(LEFT, TOP - 16, title, "start", size=14)]
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in ticks(x0, x1, x):
        px, _ = at((value, 10.0**y0 if y.log else y0))
        out += [line(px, TOP, px, bottom, "#dddddd"), text(px, bottom + 18, f"{value:g}", "middle")]
    for value in ticks(y0, y1, y):
        _, py = at((10.0**x0 if x.log else x0, value))
        out += [line(LEFT, py, right, py, "#dddddd"), text(LEFT - 8, py + 4, f"{value:g}", "end")]
    out += [line(LEFT, bottom, right, bottom, "#333333"), line(LEFT, TOP, LEFT, bottom, "#333333")]
    out += [text((LEFT + right) / 2, HEIGHT - 12, x.name, "middle"), text(LEFT - 8, TOP - 2, y.name, "start")]
    for number, (name, points) in enumerate(shown.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [at(point) for point in points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in places]
        row = TOP + 10 + 18 * number
        out += [line(right + 12, row, right + 32, row, colour, 2), text(right + 38, row + 4, name, "start")]
    return "\n".join([*out, "</svg>"]) + "\n"
