"""Rows of several runs of one benchmark, of an old and a new checkout, become ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

Rows = Sequence[dict[str, Any]]
AGAINST: Final = ("doubt", "FAILED")
"""Columns of rows that say why figures are worth nothing."""


class OtherShape(Exception):
    """The runs have not measured the same things."""


def ratios(old: Sequence[Rows], new: Sequence[Rows], wanted: str = "") -> list[dict[str, Any]]:
    """One row for each figure: medians, their ratio, and how far the runs of one side lie apart (largest over smallest).

    Rows belong together by their texts, and by their order among those with the same. A figure is a number with a fraction
    somewhere, or one that differs between runs; whole numbers that are the same everywhere name the row too. Rows and columns
    that a run lacks are left out; `skipped` names the rows.
    `wanted`: only figures with this in their name. Raises OtherShape if nothing is left.
    """
    runs = [_by_texts(rows) for rows in (*old, *new)]
    found: list[dict[str, Any]] = []
    for texts in runs[0]:
        if len({len(run.get(texts, ())) for run in runs}) != 1:
            continue
        for same in zip(*(run[texts] for run in runs), strict=True):
            found += _figures(same[: len(old)], same[len(old) :], wanted)
    if not found:
        raise OtherShape("no row with a figure is in all runs")
    return found


def skipped(old: Sequence[Rows], new: Sequence[Rows]) -> list[str]:
    """The texts of rows that are not in all runs, or not equally often."""
    runs = [_by_texts(rows) for rows in (*old, *new)]
    known = dict.fromkeys(texts for run in runs for texts in run)
    return [
        " ".join(value for _, value in texts) or "a row of numbers"
        for texts in known
        if len({len(run.get(texts, ())) for run in runs}) != 1
    ]


def said_against(rows: Rows, code: int) -> list[str]:
    """What a run itself has said against its figures. `code`: how it ended, 0 if that is nothing against them."""
    found = [f"{name}: {row[name]}" for row in rows for name in AGAINST if name in row]
    return found or [f"it ended with {code}"] * bool(code)


def _by_texts(rows: Rows) -> dict[tuple[tuple[str, str], ...], list[dict[str, Any]]]:
    found: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
    for row in rows:
        if any(name in row for name in AGAINST):
            continue
        found.setdefault(tuple((name, value) for name, value in row.items() if isinstance(value, str)), []).append(row)
    return found


def _figures(old: Rows, new: Rows, wanted: str) -> Iterator[dict[str, Any]]:
    seen = [*old, *new]
    # What is no number is null in the JSON: no figure, and no name.
    shared = [name for name in seen[0] if all(row.get(name) is not None for row in seen)]
    numbers = [
        name for name in shared if all(isinstance(row[name], float | int) and not isinstance(row[name], bool) for row in seen)
    ]
    figures = [
        name for name in numbers if any(isinstance(row[name], float) for row in seen) or len({row[name] for row in seen}) > 1
    ]
    label = " ".join(str(seen[0][name]) for name in shared if name not in figures and len({row[name] for row in seen}) == 1)
    for name in figures:
        if wanted not in name:
            continue
        sides = [[float(row[name]) for row in rows] for rows in (old, new)]
        before, after = (statistics.median(values) for values in sides)
        row = {"row": label, "figure": name, "old": before, "new": after, "new/old": after / before if before else float("nan")}
        yield row | {"apart": max(max(values) / min(values) if min(values) > 0 else float("nan") for values in sides)}
