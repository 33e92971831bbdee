"""Rows of several runs of one benchmark, of an old and a new checkout, become ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


class OtherShape(Exception):
    """The runs have not measured the same things."""


def ratios(old: Sequence[Rows], new: Sequence[Rows], wanted: str = "") -> list[dict[str, Any]]:
    """One row for each figure: medians, their ratio, and how far the runs of one side lie apart (largest over smallest).

    A figure is a number with a fraction somewhere; what is text or a whole number everywhere names its row. Columns that only one
    side has are left out. `wanted`: only figures with this in their name. Raises OtherShape.
    """
    counts = {len(rows) for rows in (*old, *new)}
    if len(counts) != 1:
        raise OtherShape(f"the runs have {', '.join(str(count) for count in sorted(counts))} rows")
    found = []
    for number in range(counts.pop()):
        olds, news = [rows[number] for rows in old], [rows[number] for rows in new]
        seen = [*olds, *news]
        shared = [name for name in seen[0] if all(name in row for row in seen)]
        figures = [name for name in shared if any(isinstance(row[name], float) for row in seen)]
        label = " ".join(str(seen[0][name]) for name in shared if name not in figures and _alike(seen, name))
        for name in figures:
            if wanted not in name or not all(isinstance(row[name], float | int) for row in seen):
                continue
            sides = [[float(row[name]) for row in rows] for rows in (olds, news)]
            before, after = (statistics.median(values) for values in sides)
            row = {"row": label or str(number), "figure": name, "old": before, "new": after}
            row["new/old"] = after / before if before else float("nan")
            row["apart"] = max((max(values) / min(values) if min(values) > 0 else float("nan")) for values in sides)
            found.append(row)
    return found


def _alike(rows: Rows, name: str) -> bool:
    return len({str(row[name]) for row in rows}) == 1
