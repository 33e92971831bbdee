"""How what was found beside other stores becomes rows of the tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from .figures import percentile  # so that tests, to which this is another package, find it too
from .found import Found, Run

PLAIN: Final = "plain"
OURS: Final = "pegaflow"
RATES: Final[dict[str, Callable[[Run], float]]] = {
    "ids/s": lambda run: run.rate,
    "ids per CPU second of the compute thread": lambda run: run.per_compute,
    "ids per CPU second of everything": lambda run: run.per_cpu,
}

Rows = list[dict[str, Any]]


def twice_rows(found: Found, sides: Sequence[str], lengths: Sequence[int]) -> Rows:
    """Plain vLLM's second time comes from its own cache: the least that a store could take. `late`: rounds that were dropped."""
    rows: Rows = []
    for ids in lengths:
        for side in sides:
            row: dict[str, Any] = {"ttft": f"{ids} ids", "store": side}
            late = found.late(side, twice=True)
            if not (mine := found.twice(side, ids)):
                rows += [row | {"n": 0, "late": late}] if late else []
                continue
            ratio = found.warm_over_cold(side, ids)
            row |= {
                "cold_ms": found.median(side, ids, lambda each: each.cold),
                "warm_ms": found.median(side, ids, lambda each: each.warm),
            }
            row |= {"warm/cold": ratio.median, "q1": ratio.low, "q3": ratio.high}
            row["cold/plain"] = found.against(side, PLAIN, ids, lambda each: each.cold).median if found.twice(PLAIN, ids) else ""
            row["warm/ours"] = found.against(side, OURS, ids, lambda each: each.warm).median if found.twice(OURS, ids) else ""
            row |= {"computed": max(each.computed for each in mine), "n": len(mine), "late": late}
            rows.append(row)
    return rows


def stage_rows(found: Found, sides: Sequence[str], lengths: Sequence[int]) -> Rows:
    """Medians of each stage; a side whose engine loads nothing asynchronously has none."""
    rows: Rows = []
    for ids in lengths:
        for side in sides:
            stages = [each.stages for each in found.twice(side, ids) if each.stages]
            if stages:
                row: dict[str, Any] = {"warm, where it goes (ms)": f"{ids} ids", "store": side}
                rows.append(row | {name: percentile([each[name] for each in stages], 0.5) for name in stages[0]})
    return rows


def run_rows(found: Found, sides: Sequence[str], starts: int) -> Rows:
    """One for each rate and side, and one for each start. `late`: runs that were dropped."""
    rows = [_run_row(found, side, what, rate) for what, rate in RATES.items() for side in sides]
    for start in range(starts if starts > 1 else 0):
        rows += [_run_row(found, side, f"ids/s, start {start + 1}", RATES["ids/s"], start) for side in sides if found.runs(side)]
    return [row for row in rows if row]


def _run_row(found: Found, side: str, what: str, rate: Callable[[Run], float], start: int | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"no hit": what, "store": side}
    late = found.late(side, twice=False)
    if start is None and late and not found.runs(side):
        return row | {"pairs": 0, "late": late}
    try:
        ratio = found.runs_against(side, PLAIN, rate, start)
    except ValueError:  # it failed before this start, or plain vLLM was not asked for
        return {}
    if start is None:
        row["median"] = percentile([rate(run) for run in found.runs(side)], 0.5)
    row |= {"/plain": ratio.median, "q1": ratio.low, "q3": ratio.high, "pairs": ratio.pairs}
    try:
        row["/ours"] = found.runs_against(side, OURS, rate, start).median
    except ValueError:
        row["/ours"] = ""
    return row | ({"late": late} if start is None else {})
