"""The oracle has teeth: each fault in `oracle/mutants.py`, put back into the connector, is found, and for what it is."""

import re

import pytest
from hypothesis import Phase
from oracle.faults_of_saving import Mutant
from oracle.mutants import MUTANTS
from oracle.search import search

ROUNDS = 300


def said_of(mutant: Mutant) -> str:
    """What the oracle says first; nothing: empty."""
    for number in range(ROUNDS):
        try:
            with mutant():
                search(number, database=None, phases=[Phase.generate], print_blob=False, report_multiple_bugs=False)
        except (AssertionError, IndexError) as error:
            return str(error) or type(error).__name__
    return ""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_the_oracle_finds(mutant: Mutant) -> None:
    assert re.search(MUTANTS[mutant], said_of(mutant))
