"""Resets, another NONE_HASH, and the end of the scheduler half."""

import pytest
from pegaflow.connector.work import RankReport
from scheduler_script import LEASE, Half, keys


def test_after_a_reset_nothing_from_before_is_found_and_all_is_saved_anew() -> None:
    half = Half()
    request = half.new(51)
    half.step({"r": 51}, {"r": [1, 2, 3, 4]})
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (48, True)
    assert not half.half.reset(), "its blocks are pinned"
    half.half.reported(RankReport({1: 1}), ())
    assert half.half.reset()
    assert half.bus.calls == [("release", LEASE)]
    assert half.half.matched(request, 0) == (None, False)
    old, new = half.bus.lookups
    assert len(new["keys"]) == 3
    assert not {*old["keys"], *old["tails"]} & {*new["keys"], *new["tails"]}
    assert {len(key) for key in [*old["keys"], *new["keys"]]} == {32}
    half.step({"r": 51}, {"r": [1, 2, 3, 4]})
    first, again = half.bus.intents
    assert again["keys"][:3] == new["keys"], "what it saves now, it finds now"
    assert not set(first["keys"]) & set(again["keys"])
    assert half.counters.take()["cache_resets"] == 1


def test_a_reset_while_vllms_own_has_failed_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    half.pool.touch([half.pool.blocks[7]])  # a request that runs
    assert not half.half.reset()
    assert "reset_refused" in caplog.text
    half.new(16)
    assert half.bus.lookups[0]["tails"][-1:] == keys(16, [0], False), "the names are those from before"


def test_a_reset_that_concerns_the_engine_only() -> None:
    half = Half(on_reset="keep")
    half.pool.touch([half.pool.blocks[7]])
    assert half.half.reset()
    request = half.new(51)
    assert half.bus.lookups[0]["keys"] == keys(51, [0, 1, 2], False)
    assert half.half.matched(request, 0) == (None, False)


def test_another_none_hash_turns_the_cache_off(caplog: pytest.LogCaptureFixture) -> None:
    half = Half(seed_agrees=False)
    request = half.new(51)
    assert half.half.matched(request, 0) == (0, False)
    assert half.bus.lookups == []
    assert "none_hash_differs" in caplog.text


def test_closing_closes_the_bus() -> None:
    half = Half()
    half.half.close()
    assert half.bus.calls == [("close", None)]
