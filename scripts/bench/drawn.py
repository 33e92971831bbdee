"""Rows of a benchmark's tables as charts of bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from charts.bars import draw
from charts.lines import Axis

Rows = Sequence[dict[str, Any]]


class Bars(NamedTuple):
    """One chart. A row that has all columns of `label` is a group named by them; each of its `figures` is a bar.

    `file`: its name, without `.svg`. `at`: where a line is drawn.
    """

    file: str
    title: str
    axis: Axis
    label: Sequence[str]
    figures: Sequence[str]
    at: float | None = None


def groups(tables: Iterable[Rows], bars: Bars) -> dict[str, dict[str, float]]:
    """Group → (figure → value); figures that a row lacks, or that are no numbers, are left out."""
    found: dict[str, dict[str, float]] = {}
    for row in (row for rows in tables for row in rows):
        if all(name in row for name in bars.label):
            values = {name: row[name] for name in bars.figures if isinstance(row.get(name), int | float)}
            found[", ".join(f"{row[name]}" if isinstance(row[name], str) else f"{row[name]} {name}" for name in bars.label)] = (
                values
            )
    return found


def draw_bars(tables: Iterable[Rows], charts: Iterable[Bars], folder: Path | None) -> None:
    """Writes and names them, if there is a folder; a chart without any bar is left out."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    tables = list(tables)
    for bars in charts:
        try:
            drawing = draw(bars.title, bars.axis, groups(tables, bars), bars.at)
        except ValueError:
            continue
        path = folder / f"{bars.file}.svg"
        path.write_text(drawing, encoding="utf-8")
        print(f"drawn: {path}")
