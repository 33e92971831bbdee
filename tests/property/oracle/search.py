"""How schedules are drawn: in many short rounds, each with a seed of its own.

Within one round hypothesis builds on what it drew before. Short rounds find every fault of `mutants.py` within some hundred
schedules; one long round needs thousands for some of them.
"""

from typing import Any

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from oracle.machine import OracleMachine

SCHEDULES = 20
"""Schedules in a round."""


def search(number: int, **chosen: Any) -> None:
    """One round; what is wrong is raised. `chosen`: settings of hypothesis besides those that a round has."""

    @seed(number)
    class Machine(OracleMachine):
        pass

    every = settings(
        max_examples=SCHEDULES, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), **chosen
    )
    run_state_machine_as_test(Machine, settings=every)
