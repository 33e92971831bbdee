"""The arithmetic of scripts/bench/engine."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from bench.engines.figures import Kind, Spread, Step, by_kind, moved, paired, percentile
from bench.report import percentile as nearest


def test_a_percentile_lies_between_its_ranks() -> None:
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.5) == 1.5
    assert percentile([float(n) for n in range(101)], 0.99) == 99.0
    assert percentile([4.0, 1.0], 1.0) == 4.0
    with pytest.raises(ValueError):
        percentile([], 0.5)


def test_ratios_are_taken_within_their_pair() -> None:
    """A machine that is twice as slow in one pair moves nothing."""
    assert paired([1.0, 2.0, 4.0], [2.0, 4.0, 8.0]) == Spread(0.5, 0.5, 0.5, 3)
    # The median of ratios, not the ratio of medians (which is 1 here).
    assert paired([1.0, 2.0, 30.0], [2.0, 1.0, 10.0]).median == 2.0
    spread = paired([1.0, 2.0, 3.0, 4.0, 5.0], [1.0] * 5)
    assert (spread.low, spread.median, spread.high) == (2.0, 3.0, 4.0)


@pytest.mark.parametrize(("these", "those"), [([], []), ([1.0], []), ([1.0], [0.0]), ([-1.0], [1.0])])
def test_what_has_no_ratio(these: list[float], those: list[float]) -> None:
    with pytest.raises(ValueError):
        paired(these, those)


def test_steps_are_told_by_what_happens_beside_the_bystanders() -> None:
    def step(start: float, ms: float, *, prefill: int = 0, decode: int = 3, loading: int = 0) -> Step:
        return Step(start, start, start + ms / 1e3, prefill, decode, loading)

    steps = [
        step(0, 10),
        step(1, 300, prefill=512),
        step(2, 14),  # that prompt's pages are copied now
        step(3, 11),
        step(4, 15, loading=1),
        step(5, 12, prefill=1),  # the last position of the prompt that was loaded: nothing to copy
        step(6, 10.5),
        step(7, 9, decode=2),  # one bystander is missing
    ]
    found = {kind: [round(ms, 6) for ms in values] for kind, values in by_kind(steps, 3).items()}
    assert found == {
        Kind.QUIET: [10, 11, 10.5],
        Kind.PREFILL: [300, 12],
        Kind.AFTER_PREFILL: [14],
        Kind.LOADING: [15],
    }


def test_the_nearest_rank_is_a_value_that_was_seen_and_not_one_too_high() -> None:
    hundred = [float(n) for n in range(1, 101)]
    assert [nearest(hundred, share) for share in (0.0, 0.01, 0.07, 0.5, 0.99, 1.0)] == [1.0, 1.0, 7.0, 50.0, 99.0, 100.0]
    assert nearest([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert nearest([5.0], 0.99) == 5.0
    with pytest.raises(IndexError):
        nearest([], 0.5)


def test_who_has_moved_is_named() -> None:
    assert moved({"a": 1.0, "b": 2.0}, {"a": 1.0005, "b": 2.5}, 0.001) == {"b": 0.5}


def test_the_warm_goal_is_over_plain_vllms_cold_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
    engine, ttft = importlib.import_module("engine"), importlib.import_module("engines.load").Ttft
    ours, plain = engine.Found.nothing(), engine.Found.nothing()
    for length in engine.LENGTHS:
        for found, cold, warm in ((ours, 4000.0, 200.0), (plain, 1000.0, 10.0)):
            found.cold[length].append(ttft(cold, {}))
            found.warm[length].append(ttft(warm, {}))
    _, (goal,) = engine.ttft_rows(ours, plain)
    assert goal.value == 0.2 and not goal.met
