"""The oracle: whatever vLLM's scheduler, the ranks and the tier do, no wrong row is ever sealed, loaded or computed upon.

Thirty-two rounds of twenty schedules of thirty rules; with PEGAFLOW_ORACLE=long some fifty times as many.
"""

import os

import pytest
from oracle.machine import SEEN
from oracle.rank import Fate
from oracle.search import search
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
ROUNDS = 1_500 if LONG else 32


@pytest.mark.timeout(4 * 3600 if LONG else 600)
def test_the_oracle_finds_nothing(request: pytest.FixtureRequest) -> None:
    SEEN.clear()
    first = int(request.config.getoption("--hypothesis-seed") or 0) * ROUNDS  # scripts/soak gives another one each time
    for number in range(first, first + ROUNDS):
        search(number)
    # It found nothing because there was nothing, and not because nothing happened.
    assert not [what for what in HAPPENS if SEEN[what] < OFTEN], SEEN
