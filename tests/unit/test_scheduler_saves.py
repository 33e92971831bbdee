"""What the scheduler half saves: keys, intents, pins and their end."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pegaflow.common.keys import block_hash, prefix_hashes
from pegaflow.connector.session import IntentRef
from pegaflow.connector.work import RankReport, SaveOrder
from scheduler_script import ALGORITHM, BLOCK, ENGINE, FINGERPRINT, NONE, SESSION, Half, keys


def test_a_save_publishes_pins_and_unpins() -> None:
    half = Half()
    half.new(50)
    work = half.step({"r": 50}, {"r": [10, 11, 12, 13]})
    (intent,) = half.bus.intents
    assert intent == {
        "keys": keys(50, [0, 1, 2], True),
        "rows": [16, 16, 16, 2],
        "stripes": [0, 0, 0, 0],
        "requests": ["r"] * 4,
        "tails": 1,
    }
    assert work.saves is not None
    assert work.saves.ref == IntentRef(SESSION, 1)
    assert work.saves.saves == (SaveOrder(1, 0, (10, 11, 12, 13), True),)
    assert half.pool.refs() == {10: 1, 11: 1, 12: 1, 13: 1}
    assert half.half.busy()
    half.half.finished("r")
    assert half.pool.refs() == {10: 1, 11: 1, 12: 1, 13: 1}
    half.half.reported(RankReport({1: 1}), ())
    assert half.pool.refs() == {}
    assert half.pool.freed == [13, 12, 11, 10]
    half.counters.take()
    half.bus.answer(0)
    half.step()
    half.counters.take()
    assert not half.half.busy()


ASKS = {"pegaflow_ask_saved": True}


@pytest.mark.parametrize("prompt", [5, 16, 48, 50])
def test_who_asks_is_told_whether_the_prompt_was_offered(prompt: int) -> None:
    half = Half()
    half.new(prompt, "saved", kv_transfer_params=ASKS)
    half.step({"saved": prompt}, {"saved": [1, 2, 3, 4]})
    assert half.half.finished("saved") == {"pegaflow_saved": True}
    half.new(prompt, "half", kv_transfer_params=ASKS)
    half.step({"half": prompt // 2}, {"half": [1, 2, 3, 4]})
    assert half.half.finished("half") == {"pegaflow_saved": False}
    half.bus.current = None
    half.new(prompt, "alone", kv_transfer_params=ASKS)
    half.step({"alone": prompt}, {"alone": [1, 2, 3, 4]})
    assert half.half.finished("alone") == {"pegaflow_saved": False}, "there is no tier"


def test_who_does_not_ask_is_told_nothing() -> None:
    half = Half()
    for name, params in (("a", None), ("b", {}), ("c", {"pegaflow_ask_saved": 1})):
        half.new(50, name, kv_transfer_params=params)
        assert half.half.finished(name) is None
    assert half.half.finished("unknown") is None


def test_one_intent_for_all_requests_of_a_step() -> None:
    half = Half()
    half.new(20, "a")
    half.new(40, "b")
    work = half.step({"a": 20, "b": 40}, {"a": [1, 2], "b": [3, 4, 5]})
    (intent,) = half.bus.intents
    assert intent["requests"] == ["a", "a", "b", "b", "b"]
    assert intent["tails"] == 2
    assert work.saves is not None
    assert work.saves.saves == (SaveOrder(1, 0, (1, 2), True), SaveOrder(2, 2, (3, 4, 5), True))


def test_every_rank_has_to_report() -> None:
    half = Half(replace(ENGINE, tp=2))
    half.new(16)
    half.step({"r": 16}, {"r": [5]})
    first, second = RankReport({1: 1}), RankReport({1: 1})
    half.half.reported(first, ())
    assert half.pool.refs() == {5: 1}
    half.half.reported(second, ())
    assert half.pool.refs() == {}


def test_reports_add_up() -> None:
    report = RankReport({1: 1, 2: 1}, {"r": "session_over"})
    report.add(RankReport({2: 1, 3: 1}, {"r": "copy_failed", "s": "copy_failed"}))
    assert report == RankReport({1: 1, 2: 2, 3: 1}, {"r": "session_over", "s": "copy_failed"})


def test_with_mla_ranks_share_the_writing() -> None:
    half = Half(replace(ENGINE, tp=2, mla=True))
    half.new(64)
    half.step({"r": 64}, {"r": [5, 6, 7, 8]})
    assert half.bus.intents[0]["stripes"] == [0, 1, 0, 1]


def test_an_intent_that_does_not_go_out_pins_nothing_and_comes_again() -> None:
    half = Half()
    half.new(20)
    half.bus.full = True
    assert half.step({"r": 20}, {"r": [1, 2]}).saves is None
    assert half.pool.refs() == {}
    half.bus.full = False
    request = half.half._requests["r"]
    request.num_computed_tokens = 20
    assert half.step({"r": 1}, {"r": [1, 2]}).saves is not None
    assert half.bus.intents[0]["keys"] == keys(20, [0], True)


@pytest.mark.parametrize("why", ["mode", "no session", "no bus", "seed"])
def test_nothing_is_saved(why: str) -> None:
    half = Half(mode="read" if why == "mode" else "read_write", seed_agrees=why != "seed")
    if why == "no session":
        half.bus.current = None
    if why == "no bus":
        half.half.saving.connect(None)
    half.new(20)
    assert half.step({"r": 20}, {"r": [1, 2]}).saves is None
    assert half.bus.intents == []
    assert half.pool.refs() == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"lora_request": object()},
        {"cache_salt": "s"},
        {"mm_features": [1]},
        {"prompt_embeds": object()},
        {"resumable": True},
    ],
)
def test_full_blocks_but_no_tail(fields: dict[str, Any]) -> None:
    half = Half()
    half.new(20, **fields)
    half.step({"r": 20}, {"r": [1, 2]})
    assert half.bus.intents[0]["keys"] == keys(20, [0], False)
    assert half.bus.lookups[0]["tails"] == []


def test_a_decoder_saves_no_tails() -> None:
    half = Half(replace(ENGINE, role="kv_consumer"))
    half.new(20)
    half.step({"r": 20}, {"r": [1, 2]})
    assert half.bus.intents[0]["keys"] == keys(20, [0], False)


def test_one_bad_request_does_not_cost_the_others_their_save(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    no_table, no_tail, _ = half.new(20, "no table"), half.new(20, "no tail"), half.new(20, "good")
    no_tail.prompt_token_ids = [*range(19), 2**70]
    tables: dict[str, Any] = {no_table.request_id: 5, "no tail": [1, 2], "good": [3, 4]}
    work = half.step({"no table": 20, "no tail": 20, "good": 20}, tables)
    assert work.saves is not None
    assert [order.blocks for order in work.saves.saves] == [(3, 4)]
    assert half.pool.refs() == {3: 1, 4: 1}
    assert "offer_failed: request no table" in caplog.text
    assert "offer_failed: request no tail" in caplog.text


def test_an_error_while_saving_does_not_lose_the_loads(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [1, 2, 3, 4], 48)
    work = half.half.build(SimpleNamespace(num_scheduled_tokens=None))
    assert [load.request_id for load in work.loads] == ["r"]
    assert "hook_failed" in caplog.text


def test_hashes_finer_than_a_block() -> None:
    half = Half(replace(ENGINE, hash_block_size=8))
    half.new(40, hash_block=8)
    half.step({"r": 40}, {"r": [1, 2, 3]})
    hashes = prefix_hashes(ALGORITHM, NONE, list(range(40)), 8)
    tail = block_hash(ALGORITHM, hashes[3], list(range(32, 40)))
    assert half.bus.intents[0]["keys"] == [FINGERPRINT + h for h in (hashes[1], hashes[3], tail)]


@pytest.mark.parametrize("fine", [4, 8])
def test_with_hashes_finer_than_a_block_the_one_at_its_boundary_is_its_key(fine: int) -> None:
    half = Half(replace(ENGINE, hash_block_size=fine))
    request = half.new(51, hash_block=fine)
    hashes = prefix_hashes(ALGORITHM, NONE, list(range(51)), fine)
    per_block = BLOCK // fine
    blocks = [FINGERPRINT + hashes[(index + 1) * per_block - 1] for index in range(3)]
    (lookup,) = half.bus.lookups
    assert lookup["keys"] == blocks
    # A tail's parent is the hash of the last full block, at its boundary as well.
    parent = hashes[3 * per_block - 1]
    ends = [FINGERPRINT + block_hash(ALGORITHM, type(NONE)(parent), list(range(48, end))) for end in (50, 51)]
    assert lookup["tails"] == ends
    half.bus.answer(3, tail=0)
    assert half.half.matched(request, 0) == (50, True)
    half.half.allocated(request, [20, 21, 22, 23], 0)
    half.step({"r": 51}, {"r": [20, 21, 22, 23]})
    assert half.bus.intents[0]["keys"] == [*blocks, ends[1]]


def test_a_rank_that_reports_twice_does_not_cost_other_saves_their_end(caplog: pytest.LogCaptureFixture) -> None:
    half = Half()
    half.new(32, "a")
    half.new(48, "b")
    half.step({"a": 32, "b": 48}, {"a": [1, 2], "b": [3, 4, 5]})
    half.half.reported(RankReport({1: 1}), ())
    half.half.reported(RankReport({1: 1, 2: 1}), ())
    assert half.pool.refs() == {}
    assert "save_ended_twice" in caplog.text


def test_seconds_of_a_save_run_until_every_rank_has_ended_it() -> None:
    half = Half(replace(ENGINE, tp=2), mode="write_only")
    half.new(32)
    half.now = 1.0
    half.step({"r": 32}, {"r": [1, 2]})
    half.now = 1.5
    half.half.reported(RankReport({1: 1}), ())
    half.now = 4.0
    half.half.reported(RankReport({1: 1}), ())
    assert half.counters.take()["save_seconds"] == [3.0]
