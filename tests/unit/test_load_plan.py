"""Which keys are asked for, as numbers. Block size 16."""

import pytest
from pegaflow.connector.load_plan import LoadPlan, load_plan


def plan(known: int, *, prompt: int | None = None, first: int = 0, tails: bool = True, strict: bool = False) -> LoadPlan:
    return load_plan(
        prompt=known if prompt is None else prompt, known=known, block_size=16, first=first, tails=tails, strict=strict
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (51, LoadPlan(0, 3, (50, 51))),
        (50, LoadPlan(0, 3, (49, 50))),
        (49, LoadPlan(0, 3, ())),
        (48, LoadPlan(0, 2, (47, 48))),
        (17, LoadPlan(0, 1, ())),
        (11, LoadPlan(0, 0, (10, 11))),
        (2, LoadPlan(0, 0, (1, 2))),
        (1, LoadPlan(0, 0, ())),
    ],
)
def test_with_tails(ids: int, expected: LoadPlan) -> None:
    assert plan(ids) == expected


@pytest.mark.parametrize(("ids", "last"), [(51, 3), (49, 3), (48, 3), (47, 2), (11, 0)])
def test_without_tails_only_full_blocks(ids: int, last: int) -> None:
    assert plan(ids, tails=False) == LoadPlan(0, last, ())


def test_a_preempted_request_asks_for_what_it_decoded_too() -> None:
    assert plan(70, prompt=51) == LoadPlan(0, 4, ())
    assert plan(56, prompt=51) == LoadPlan(0, 3, (50, 51))


def test_a_strict_one_asks_for_its_prompt() -> None:
    assert plan(70, prompt=51, strict=True) == LoadPlan(0, 3, (64, 50, 51))
    assert plan(70, prompt=49, strict=True) == LoadPlan(0, 3, (64, 49))
    assert plan(70, prompt=48, strict=True) == LoadPlan(0, 2, (48, 47))


def test_nothing_to_ask() -> None:
    assert plan(49, first=3).empty
    assert plan(1).empty
    assert not plan(51, first=3).empty


def test_covered() -> None:
    asked = plan(51, first=1)
    assert asked.covered(0, -1, 16) == 16
    assert asked.covered(1, -1, 16) == 32
    assert asked.covered(2, -1, 16) == 48
    assert asked.covered(2, 0, 16) == 50
    assert asked.covered(2, 1, 16) == 51
    # The tail hangs on the full blocks before it.
    assert asked.covered(1, 0, 16) == 32
