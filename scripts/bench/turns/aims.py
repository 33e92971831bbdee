"""What P/D has to be better at than two mixed engines on the same cores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from report import Goal, at_least, at_most

from turns.figures import Slo
from turns.record import Arrival, Run
from turns.rows import ratios
from turns.shape import Shape

Pairs = Sequence[tuple[Run, Run]]
"""P/D and mixed of each round of one loop, one at least."""
NO_SLOWER: Final = 1.0
THROUGHPUT: Final = "throughput"
THROUGHPUT_KEPT: Final = 0.9


def goals(pairs: Pairs, shape: Shape, slo: Slo, doubtful: bool) -> list[Goal]:
    """The median of the rounds. A goal is met only if each of them meets it; where some do, nothing is decided.

    `doubtful`: there is something against one of the runs. Then no goal is met: who answers less, or wrongly, has less to do.
    """
    met = [
        _goal(f"{what}, {_of(pairs)}", values, *((at_least, THROUGHPUT_KEPT) if what == THROUGHPUT else (at_most, NO_SLOWER)))
        for what, values in _judged(pairs, shape, slo).items()
    ]
    return [replace(goal, met=goal.met and not doubtful) for goal in met]


def beside(pairs: Pairs, shape: Shape, slo: Slo) -> list[dict[str, Any]]:
    """The figures that have goals, against another mixed pair; these are none."""
    return [
        {
            "beside the goals": f"{what}, {_of(pairs)}",
            "median": statistics.median(values),
            "lowest": min(values),
            "highest": max(values),
            "rounds": len(values),
        }
        for what, values in _judged(pairs, shape, slo).items()
    ]


def _of(pairs: Pairs) -> str:
    return f"P/D over {pairs[0][1].kind}, {pairs[0][0].arrival} loop"


def _judged(pairs: Pairs, shape: Shape, slo: Slo) -> dict[str, list[float]]:
    """Figure → the ratio of each round. Throughput of an open loop is that of its arrivals: judged in the closed one only."""
    found = [ratios(ours, theirs, shape, slo) for ours, theirs in pairs]
    judged = {f"{name.upper()} p99": [each[f"{name} p99"] for each in found] for name in ("tpot", "itl")}
    if pairs[0][0].arrival is Arrival.CLOSED:
        judged[THROUGHPUT] = [each["answer ids/s"] for each in found]
    return judged


def _goal(name: str, values: Sequence[float], judge: Callable[[str, float, float], Goal], limit: float) -> Goal:
    goal = judge(name, statistics.median(values), limit)
    met = {judge(name, value, limit).met for value in values}
    said = f"{len(values)} rounds, {min(values):.3f} to {max(values):.3f}" if len(values) > 1 else "one run"
    return replace(goal, goal=f"{goal.goal} ({said}{'' if len(met) == 1 else ': not decided'})", met=met == {True})
