"""Does the simulation say what happens? The same script on two real tiers and a metaserver, and simulated, side by side.

Counts must be equal. Times are compared as ratios. What goes in: costs (measure.py), a ping to a real tier for the wire's part,
the checksum's rate in the same run, the mover's rate, which is set by hand (pair.MOVER), and the READ's latency from the real
lookup of one remote page, so that row fits by itself. Compared are two tiers and a metaserver; docs/scaling.md says what is not.
"""

from __future__ import annotations

from typing import Any

from simulation.costs import Costs
from simulation.measure import checksums
from simulation.pair import MOVER, PAGE_BYTES, SIZES, Played, SimPair, play
from simulation.real_pair import RealPair
from simulation.tally import percentile


def validated(costs: Costs, rounds: int) -> tuple[list[list[dict[str, Any]]], int]:
    """Tables of what goes in, of counts and of times, and how many counts differ."""
    checksum = checksums(PAGE_BYTES)
    with RealPair() as real_pair:
        real_pair.settled()
        ping = real_pair.ping()
        real = play(real_pair, rounds)
        hop = max(1e-6, (ping - costs.woken - costs.received(0) - costs.sent(0)) / 2)
    wanted = percentile(real.remote[1], 0.5)
    without = percentile(play(SimPair(costs, hop, 0.0, checksum), 20, restarts=0).remote[1], 0.5)
    latency = max(0.0, wanted - without)
    simulated = play(SimPair(costs, hop, latency, checksum), rounds)
    inputs: list[dict[str, Any]] = [
        {"input": "message, one way, us", "value": hop * 1e6, "from": "ping"},
        {"input": "READ, us", "value": latency * 1e6, "from": "fitted to the remote lookup of 1"},
        {"input": "checksum, GB/s", "value": checksum / 1e9, "from": "measured"},
        {"input": "mover, GB/s", "value": MOVER / 1e9, "from": "set by hand"},
    ]
    counts = list(_counts(real, simulated))
    different = sum(row["real"] != row["simulated"] for row in counts)
    return [inputs, counts, list(_times(real, simulated, rounds))], different


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
    for place, what in enumerate(("until it knows a node", "until it is whole")):
        took, takes = (percentile([pair[place] for pair in one.restarts], 0.5) for one in (real, simulated))
        yield _time(f"metaserver begins again: {what}, p50 ms", 1e3 * took, 1e3 * takes)


def _time(what: str, real: float, simulated: float) -> dict[str, Any]:
    return {"time": what, "real": real, "simulated": simulated, "simulated / real": simulated / real if real else float("nan")}
