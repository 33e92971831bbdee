"""Does the simulation say what happens? The same script on two real tiers and a metaserver, and simulated, side by side.

Counts must be equal. Times are compared as ratios: the wire's part comes from a ping to a real tier and the READ's latency from
the real lookup of one remote page, so that row fits by itself; all other rows are predictions.
"""

from __future__ import annotations

from typing import Any

from simulation.costs import Costs
from simulation.pair import SIZES, Played, SimPair, play
from simulation.real_pair import RealPair
from simulation.tally import percentile


def validated(costs: Costs, rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Rows of counts, rows of times, and how many counts differ."""
    with RealPair() as real_pair:
        real_pair.settled()
        ping = real_pair.ping()
        real = play(real_pair, rounds)
        hop = max(1e-6, (ping - costs.woken - costs.received(0) - costs.sent(0)) / 2)
    wanted = percentile(real.remote[1], 0.5)
    without = percentile(play(SimPair(costs, hop, 0.0), 20).remote[1], 0.5)
    simulated = play(SimPair(costs, hop, max(0.0, wanted - without)), rounds)
    counts = list(_counts(real, simulated))
    return counts, list(_times(real, simulated, rounds)), sum(row["real"] != row["simulated"] for row in counts)


def _counts(real: Played, simulated: Played) -> Any:
    for process, counts in real.counts.items():
        for name, value in counts.items():
            other = simulated.counts[process][name]
            yield {"count": f"{process}: {name}", "real": value, "simulated": other, "": "" if value == other else "DIFFERENT"}


def _times(real: Played, simulated: Played, rounds: int) -> Any:
    for name, mine, theirs in (("remote", real.remote, simulated.remote), ("local", real.local, simulated.local)):
        for size in SIZES:
            what = f"{name} lookup of {size}, p50 ms" + (" (fitted)" if name == "remote" and size == 1 else "")
            yield _time(what, 1e3 * percentile(mine[size], 0.5), 1e3 * percentile(theirs[size], 0.5))
    for process, seconds in real.cpu.items():
        yield _time(f"{process}: CPU ms per round", 1e3 * seconds / rounds, 1e3 * simulated.cpu[process] / rounds)

    for what, seconds in real.flood.items():
        yield _time(f"{what}, many at once: CPU ms", 1e3 * seconds, 1e3 * simulated.flood[what])


def _time(what: str, real: float, simulated: float) -> dict[str, Any]:
    return {"time": what, "real": real, "simulated": simulated, "simulated / real": simulated / real if real else float("nan")}
