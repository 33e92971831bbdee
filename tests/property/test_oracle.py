"""The oracle: whatever vLLM's scheduler, the ranks and the tier do, no wrong row is ever sealed, loaded or computed upon.

Two thousand schedules of thirty rules; with PEGAFLOW_ORACLE=long thirty times as many.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from oracle.machine import SEEN, OracleMachine
from oracle.rank import Fate

LONG = os.environ.get("PEGAFLOW_ORACLE") == "long"

HAPPENS = (
    *("claims", "loads_done", "loads_failed", "refusals", "local_hits", "sealed", "sealed_tails", "restarted"),
    *("preempted", "resumed", "rejected", "late", "aborted_waiting", "aborted_loading", "aborted_running"),
    *(f"load_{fate}" for fate in Fate if fate is not Fate.NO_GRANT),
    *(f"save_{fate}" for fate in Fate if fate is not Fate.REPLACED),
)


@pytest.mark.timeout(4 * 3600 if LONG else 180)
def test_the_oracle_finds_nothing() -> None:
    SEEN.clear()
    run_state_machine_as_test(
        OracleMachine,
        settings=settings(
            max_examples=60_000 if LONG else 2_000,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    # It found nothing because there was nothing, and not because nothing happened.
    assert not [what for what in HAPPENS if SEEN[what] < 10], SEEN
