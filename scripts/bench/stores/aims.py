"""The goals of PegaFlow beside other stores. Pure."""

from __future__ import annotations

from typing import Final

from engines.found import Found
from engines.rows import OURS, PLAIN, RATES
from report import Goal, at_least, at_most

WARM: Final = 0.1
NO_HIT: Final = 0.99


def goals(found: Found, longest: int) -> list[Goal]:
    """Ours, against plain vLLM in the same round: our own cold time would be better for being worse. For the peers the tables
    say it."""
    met = []
    if found.twice(OURS, longest) and found.twice(PLAIN, longest):
        ratio = found.warm_over_cold_of(OURS, PLAIN, longest).median
        met.append(at_most(f"warm over plain vLLM's cold time to first token at {longest} ids", ratio, WARM))
    if found.runs(OURS) and found.runs(PLAIN):
        ratio = found.runs_against(OURS, PLAIN, RATES["ids/s"]).median
        met.append(at_least("throughput without any hit, against plain vLLM", ratio, NO_HIT))
    return met
