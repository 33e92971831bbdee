"""The breaker and the retry budget, as scripts."""

from __future__ import annotations

import pytest
from pegaflow.services.router.breaker import Breaker, BreakerSettings, BreakerState
from pegaflow.services.router.budget import RESERVE, RetryBudget
from pegaflow.services.router.engines import Engines
from pegaflow.services.router.steps import Role, Verdict

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
BAD, GOOD, NOTHING = Verdict.BAD, Verdict.GOOD, Verdict.NOTHING


def broken(failures: int = 3) -> Breaker:
    """Opened at 0 for 5 seconds."""
    breaker = Breaker(BreakerSettings(failures, 5.0))
    for _ in range(failures):
        breaker.record(BAD, 0.0)
    return breaker


def test_failures_in_a_row_open_it() -> None:
    breaker = Breaker(BreakerSettings(3, 5.0))
    for verdict in (BAD, BAD, GOOD, BAD, NOTHING, BAD):
        breaker.record(verdict, 0.0)
        assert breaker.state(0.0) is CLOSED
    breaker.record(BAD, 0.0)
    assert (breaker.state(4.9), breaker.allows(4.9)) == (OPEN, False)


def test_one_trial_after_the_pause() -> None:
    breaker = broken()
    assert (breaker.state(5.0), breaker.allows(5.0)) == (HALF_OPEN, True)
    breaker.picked()
    assert not breaker.allows(5.0), "one at a time"
    breaker.record(NOTHING, 6.0)
    assert breaker.allows(6.0), "its client left: another may try"
    breaker.picked()
    breaker.record(GOOD, 7.0)
    assert breaker.state(7.0) is CLOSED


def test_pauses_double_up_to_a_limit() -> None:
    breaker, now, pauses = broken(), 0.0, []
    for _ in range(6):
        opened = now
        while breaker.state(now) is OPEN:
            now += 5.0
        pauses.append(now - opened)
        breaker.picked()
        breaker.record(BAD, now)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 40.0, 40.0]


def test_what_was_sent_before_it_opened_changes_nothing() -> None:
    breaker = broken()
    for _ in range(9):
        breaker.record(BAD, 4.0)
    assert breaker.state(5.0) is HALF_OPEN


def test_it_can_be_off() -> None:
    breaker = Breaker(BreakerSettings(0, 5.0))
    for _ in range(100):
        breaker.record(BAD, 0.0)
    assert breaker.state(0.0) is CLOSED


@pytest.mark.parametrize("how", ["restart", "unreachable"])
def test_an_engine_that_was_down_begins_anew(how: str) -> None:
    engines = Engines({Role.ENGINE: ["a"]}, breaker=BreakerSettings(2, 5.0), now=lambda: 0.0)
    (engine,) = engines.all()
    engines.mark(engine, healthy=True)
    for _ in range(2):
        assert engines.pick(Role.ENGINE, frozenset()) is engine
        engines.release(engine, BAD)
    assert engines.pick(Role.ENGINE, frozenset()) is None
    engines.mark(engine, healthy=False)
    engines.mark(engine, healthy=True)
    assert engines.pick(Role.ENGINE, frozenset()) is engine
    engines.release(engine, Verdict.DEAD if how == "unreachable" else GOOD)
    assert engine.healthy is (how == "restart")
    assert engine.load == 0


def test_the_budget() -> None:
    budget = RetryBudget(0.25)
    spent = 0
    while budget.spend():
        spent += 1
    assert spent == RESERVE
    for _ in range(3):
        budget.earn()
        assert not budget.spend()
    budget.earn()
    assert budget.spend()
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(100)) == RESERVE
