"""The oracle has teeth: each fault in `oracle/mutants.py`, put back into the connector, is found, and for what it is."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from oracle.faults_of_saving import Mutant
from oracle.machine import OracleMachine
from oracle.mutants import MUTANTS

SETTINGS = settings(
    max_examples=3_000,
    stateful_step_count=30,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_the_oracle_finds(mutant: Mutant) -> None:
    number, says = MUTANTS[mutant]

    @seed(number)
    class Machine(OracleMachine):
        pass

    with mutant(), pytest.raises((AssertionError, IndexError), match=says):
        run_state_machine_as_test(Machine, settings=SETTINGS)
