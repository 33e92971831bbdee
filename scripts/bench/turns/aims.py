"""What P/D has to be better at than two mixed engines on the same cores."""

from __future__ import annotations

from dataclasses import replace

from report import Goal, at_least, at_most

from turns.figures import Slo
from turns.record import Arrival, Run
from turns.rows import ratios
from turns.shape import Shape


def goals(pd: Run, mixed: Run, shape: Shape, slo: Slo, doubtful: bool) -> list[Goal]:
    """Throughput of an open loop is that of its arrivals, so it has a goal in the closed one only.

    `doubtful`: there is something against either run. Then no goal is met: who answers less, or wrongly, has less to do.
    """
    found = ratios(pd, mixed, shape, slo)
    loop = f"P/D over mixed, {pd.arrival} loop"
    met = [at_most(f"{name.upper()} p99, {loop}", found[f"{name} p99"], 1.0) for name in ("tpot", "itl")]
    if pd.arrival is Arrival.CLOSED:
        met.append(at_least(f"throughput, {loop}", found["answer ids/s"], 0.9))
    return [replace(goal, met=goal.met and not doubtful) for goal in met]
