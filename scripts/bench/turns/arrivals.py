"""When each turn is to be asked in an open loop. Pure."""

from __future__ import annotations

import random
from typing import NamedTuple


class Arrival(NamedTuple):
    """`at`: seconds from the start."""

    at: float
    session: int
    turn: int


def poisson(sessions: int, turns: int, rate: float, seed: int) -> list[Arrival]:
    """One Poisson process of `rate` requests a second for all turns of all sessions.

    All sessions have their first turn before any has its second, each time in another order: pauses within a session are
    about `sessions / rate` seconds. What is planned does not depend on how fast anybody answers.
    """
    if rate <= 0:
        raise ValueError(f"a rate of {rate}")
    draw = random.Random(seed)
    now, found = 0.0, []
    for turn in range(turns):
        for session in draw.sample(range(sessions), sessions):
            now += draw.expovariate(rate)
            found.append(Arrival(now, session, turn))
    return found


def by_session(arrivals: list[Arrival], sessions: int) -> list[list[float]]:
    """The times of each session's turns, in order."""
    times: list[list[float]] = [[] for _ in range(sessions)]
    for one in sorted(arrivals, key=lambda one: one.turn):
        times[one.session].append(one.at)
    return times
