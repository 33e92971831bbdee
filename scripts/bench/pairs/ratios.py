"""Rows of several runs of one benchmark, of an old and a new checkout, become ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


class OtherShape(Exception):
    """The runs have not measured the same things."""


def ratios(old: Sequence[Rows], new: Sequence[Rows], wanted: str = "") -> list[dict[str, Any]]:
    """One row for each figure: medians, their ratio, and how far the runs of one side lie apart (largest over smallest).

    Rows belong together by their texts, and by their order among those with the same. A figure is a number with a fraction
    somewhere; whole numbers that are the same everywhere name the row too. Rows and columns that a run lacks are left out.
    `wanted`: only figures with this in their name. Raises OtherShape if nothing is left.
    """
    runs = [_by_texts(rows) for rows in (*old, *new)]
    found = []
    for texts in runs[0]:
        if len({len(run.get(texts, ())) for run in runs}) != 1:
            continue
        for same in zip(*(run[texts] for run in runs), strict=True):
            found += _figures(same[: len(old)], same[len(old) :], wanted)
    if not found:
        raise OtherShape("no row with a figure is in all runs")
    return found


def _by_texts(rows: Rows) -> dict[tuple[tuple[str, str], ...], list[dict[str, Any]]]:
    found: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple((name, value) for name, value in row.items() if isinstance(value, str)), []).append(row)
    return found


def _figures(old: Rows, new: Rows, wanted: str) -> Iterator[dict[str, Any]]:
    seen = [*old, *new]
    shared = [name for name in seen[0] if all(name in row for row in seen)]
    figures = [name for name in shared if any(isinstance(row[name], float) for row in seen)]
    label = " ".join(str(seen[0][name]) for name in shared if name not in figures and len({row[name] for row in seen}) == 1)
    for name in figures:
        if wanted not in name or not all(isinstance(row[name], float | int) for row in seen):
            continue
        sides = [[float(row[name]) for row in rows] for rows in (old, new)]
        before, after = (statistics.median(values) for values in sides)
        row = {"row": label, "figure": name, "old": before, "new": after, "new/old": after / before if before else float("nan")}
        yield row | {"apart": max(max(values) / min(values) if min(values) > 0 else float("nan") for values in sides)}
