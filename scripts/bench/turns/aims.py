"""What P/D has to be better at than two mixed engines on the same cores."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from report import Goal, at_least, at_most

from turns.figures import Slo
from turns.record import Arrival, Run
from turns.rows import ratios
from turns.shape import Shape


def goals(pairs: Sequence[tuple[Run, Run]], shape: Shape, slo: Slo, doubtful: bool) -> list[Goal]:
    """The median of the rounds. `pairs`: P/D and mixed of each round of one loop, one at least.

    Throughput of an open loop is that of its arrivals, so it has a goal in the closed one only.
    `doubtful`: there is something against one of the runs. Then no goal is met: who answers less, or wrongly, has less to do.
    """
    found = [ratios(pd, mixed, shape, slo) for pd, mixed in pairs]

    def median(name: str) -> float:
        return statistics.median(each[name] for each in found)

    arrival = pairs[0][0].arrival
    loop = f"P/D over mixed, {arrival} loop"
    met = [at_most(f"{name.upper()} p99, {loop}", median(f"{name} p99"), 1.0) for name in ("tpot", "itl")]
    if arrival is Arrival.CLOSED:
        met.append(at_least(f"throughput, {loop}", median("answer ids/s"), 0.9))
    return [replace(goal, met=goal.met and not doubtful) for goal in met]
