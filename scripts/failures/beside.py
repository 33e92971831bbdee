"""What is asked beside the request that is caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deployment.http import Server
from deployment.reference import Expected
from deployment.traffic import Mix, Traffic
from failures.scenario import ALL, Scenario

REQUESTS: Final = 6
CLIENTS: Final = 3
MIX: Final = Mix(streams=0.5, leavers=0.3, least=1)
"""So in each scenario somebody goes away in mid-answer, and somebody hears a stream to its end."""


def beside(server: Server, prompts: Sequence[Expected], scenario: Scenario | None = None) -> Traffic:
    """Not the same in each scenario, but in a scenario the same whichever others are played. None: before the first one."""
    seed = len(ALL) if scenario is None else ALL.index(scenario)
    return Traffic(server, prompts, REQUESTS, clients=CLIENTS, seed=seed, mix=MIX)
