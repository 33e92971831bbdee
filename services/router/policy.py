"""Which engine gets the next leg. Pure.

Load is the legs that this router has open at an engine. Who holds a prefix is preferred only while its load is below
a bound a quarter above the average (Mirrokni and others, Consistent Hashing with Bounded Loads): a popular prefix
then spreads, instead of queueing at one engine while others idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

SLACK: Final = 1.25


class Policy(StrEnum):
    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    PREFIX = "prefix"  # where this prompt's beginning was sent before, if the load allows


class Candidate(NamedTuple):
    """`load`: legs that this router has open there; `turn`: when it was last picked, as a rising number; `held`: how
    much of the prompt it is thought to hold, in any unit.
    """

    name: str
    load: int
    turn: int
    held: int = 0


def choose(policy: Policy, candidates: Sequence[Candidate], avoid: frozenset[str]) -> str | None:
    """A name; None when there is no candidate. Among equals the one picked longest ago.

    `avoid` is a wish: an engine that just failed this request is still better than none. What candidates hold counts
    under every policy; under which one it is known is up to the caller.
    """
    wanted = [one for one in candidates if one.name not in avoid] or candidates
    if not wanted:
        return None
    if any(one.held for one in wanted):
        bound = math.ceil(SLACK * (sum(one.load for one in wanted) + 1) / len(wanted))
        allowed = [one for one in wanted if one.load < bound]
        return min(allowed, key=lambda one: (-one.held, one.load, one.turn)).name
    if policy is Policy.ROUND_ROBIN:
        return min(wanted, key=lambda one: one.turn).name
    return min(wanted, key=lambda one: (one.load, one.turn)).name
