"""The oracle: whatever vLLM's scheduler, the ranks and the tier do, no wrong row is ever sealed, loaded or computed upon.

Two thousand schedules of thirty rules; with PEGAFLOW_ORACLE=long fifteen times as many.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from oracle.machine import SEEN, OracleMachine
from oracle.rank import Fate
from oracle.shape import USES

LONG = os.environ.get("PEGAFLOW_ORACLE") == "long"

HAPPENS = (
    *("claims", "claims_tail", "loads_done", "loads_failed", "refusals", "second_loads", "local_hits"),
    *("sealed", "sealed_tails", "owed", "clean", "fine_hashes", "turns", "padded"),
    *("asked_again_grown", "asked_again_drifted", "resets", "expired"),
    *("preempted", "preempted_while_saved", "preempted_in_flight", "resumed", "resumed_elsewhere"),
    *("rejected", "scheduled_on_rejected", "late", "fenced"),
    *("aborted_waiting", "aborted_loading", "aborted_running", "aborted_in_flight"),
    *("restarted", "restarted_while_loading", "restarted_while_saving"),
    *("depth 1", "depth 2", "depth 2 async", "depth 3", "depth 3 async"),
    *("ranks 1x1", "ranks 2x1", "ranks 2x1 mla", "ranks 1x2", "ranks 2x2 mla"),
    *{f"use {role} {mode} {decode}" for role, mode, decode in USES},
    *(f"load_{fate}" for fate in Fate if fate is not Fate.NO_GRANT),
    *(f"save_{fate}" for fate in Fate if fate is not Fate.REPLACED),
)
"""Without these the test would find nothing because nothing happened. `load_replaced`: a generation changed after the copy."""
OFTEN = 5


@pytest.mark.timeout(4 * 3600 if LONG else 600)
def test_the_oracle_finds_nothing() -> None:
    SEEN.clear()
    run_state_machine_as_test(
        OracleMachine,
        settings=settings(
            max_examples=30_000 if LONG else 2_000,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    # It found nothing because there was nothing, and not because nothing happened.
    assert not [what for what in HAPPENS if SEEN[what] < OFTEN], SEEN
