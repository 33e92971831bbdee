"""A table of coloured cells as an SVG text: a title, a legend, names of columns above and of rows to the left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from charts.marks import box, line, page, text

LEFT, TOP, LEGEND = 170, 92, 34
WIDTH, HEIGHT = 124, 34
"""Of a cell."""


class Cell(NamedTuple):
    """`colour` of its ground; `words`, a line each, two at most."""

    colour: str
    words: Sequence[str]


def draw(title: str, legend: Mapping[str, str], columns: Sequence[str], rows: Mapping[str, Sequence[Cell | None]]) -> str:
    """`legend`: what → colour. `rows`: name → a cell or None for each column. Raises ValueError without rows."""
    if not rows:
        raise ValueError(f"{title}: nothing to draw")
    right, bottom = LEFT + WIDTH * len(columns), TOP + HEIGHT * len(rows)
    out = [*page(right + 16, bottom + 16), text(16, 24, title, "start", size=14)]
    x = 16.0
    for what, colour in legend.items():
        out += [box(x, LEGEND, 14, 14, colour), text(x + 20, LEGEND + 11, what, "start")]
        x += 20 + 7.0 * len(what) + 24
    out += [text(LEFT + WIDTH * (i + 0.5), TOP - 10, name, "middle") for i, name in enumerate(columns)]
    for number, (name, cells) in enumerate(rows.items()):
        y = TOP + HEIGHT * number
        out.append(text(LEFT - 10, y + HEIGHT / 2 + 4, name, "end"))
        for i, cell in enumerate(cells):
            if cell is None:
                continue
            out.append(box(LEFT + WIDTH * i, y, WIDTH, HEIGHT, cell.colour))
            first = y + HEIGHT / 2 + 4 - 7 * (len(cell.words) - 1)
            out += [text(LEFT + WIDTH * (i + 0.5), first + 14 * at, words, "middle") for at, words in enumerate(cell.words)]
    out += [line(LEFT, TOP + HEIGHT * i, right, TOP + HEIGHT * i, "#ffffff", 2) for i in range(len(rows) + 1)]
    out += [line(LEFT + WIDTH * i, TOP, LEFT + WIDTH * i, bottom, "#ffffff", 2) for i in range(len(columns) + 1)]
    return "\n".join([*out, "</svg>"]) + "\n"
