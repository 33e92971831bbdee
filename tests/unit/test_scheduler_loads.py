"""What the scheduler half looks up, claims, loads and releases."""

from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from pegaflow.common.keys import prefix_hashes
from pegaflow.connector.load_tracker import Load
from pegaflow.connector.session import SessionId
from pegaflow.connector.work import RankReport
from scheduler_script import ALGORITHM, BLOCK, FINGERPRINT, LEASE, NONE, Half, keys


def test_a_lookup_starts_with_the_request() -> None:
    half = Half(wait_ms=700)
    half.new(51)
    (lookup,) = half.bus.lookups
    assert lookup["keys"] == keys(51, [0, 1, 2], False)
    assert lookup["tails"] == [*keys(50, [], True), *keys(51, [], True)]
    assert (lookup["wait"], lookup["expected"]) == (0.7, False)


@pytest.mark.parametrize(
    ("params", "strict", "expected"),
    [({"pegaflow_expected": True}, False, True), ({"pegaflow_expected": "yes"}, False, False), (None, True, True)],
)
def test_expected(params: dict[str, Any] | None, strict: bool, expected: bool) -> None:
    half = Half(decode="strict" if strict else "recompute")
    half.new(51, kv_transfer_params=params)
    assert half.bus.lookups[0]["expected"] is expected


def test_nothing_is_expected_of_blocks_that_were_decoded_here() -> None:
    half = Half(mode="read", wait_ms=5000)
    request = half.new(49, kv_transfer_params={"pegaflow_expected": True})
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (48, True)
    half.half.allocated(request, [1, 2, 3, 4], 48)
    half.half.build(SimpleNamespace(num_scheduled_tokens={}, kv_connector_block_state=None))
    half.half.reported(None, ["r"])
    request.output, request.num_computed_tokens = 40, 0  # it has decoded, saved nothing, and is preempted
    half.half.matched(request, 0)
    again = half.bus.lookups[-1]
    assert (len(again["keys"]), again["expected"]) == (5, False)


def test_blocks_in_vllms_own_cache_are_not_looked_up() -> None:
    half = Half()
    half.pool.cached = set(prefix_hashes(ALGORITHM, NONE, list(range(51)), BLOCK)[:2])
    half.new(51)
    assert half.bus.lookups[0]["keys"] == keys(51, [2], False)


@pytest.mark.parametrize("fields", [{"skip_reading_prefix_cache": True}, {"abort_immediately": True}])
def test_no_lookup_for_requests_that_read_no_cache(fields: dict[str, Any]) -> None:
    half = Half()
    half.new(51, **fields)
    assert half.bus.lookups == []


def test_write_only_never_asks() -> None:
    half = Half(mode="write_only")
    request = half.new(51)
    assert half.half.matched(request, 0) == (0, False)
    assert half.bus.lookups == []


def test_from_lookup_to_load_to_release() -> None:
    half = Half()
    request = half.new(51)
    assert half.half.matched(request, 0) == (None, False)
    assert half.half.matched(request, 0) == (None, False)
    half.bus.answer(3, tail=0)
    half.now = 2.0
    assert half.half.matched(request, 0) == (50, True)
    half.half.allocated(request, [20, 21, 22, 23], 50)
    half.now = 5.0
    assert half.step().loads == (Load("r", (20, 21, 22, 23), LEASE, array("I", range(4)), array("Q", range(4)), True, ""),)
    assert half.step().loads == ()
    assert len(half.bus.lookups) == 1
    half.half.reported(RankReport(), {"r"})
    half.half.allocated(request, [20, 21, 22, 23], 0)
    assert half.bus.calls == [("loading", LEASE), ("release", LEASE)]
    counted = half.counters.take()
    assert counted == {
        "lookups|hit": 1,
        "lookup_pages|local": 3,
        "lookup_pages|remote": 1,
        "lookup_seconds|hit": [2.0],
        "loads|done": 1,
        "load_seconds": [3.0],
        "tier_attached|scheduler": 1,
    }
    # What came from the tier is not offered back.
    request.num_computed_tokens = 50
    half.step({"r": 1}, {"r": [20, 21, 22, 23]})
    assert half.bus.intents[0]["keys"] == keys(51, [], True)
    # But the block that came as a tail has become a full page when decoding has filled it.
    request.output, request.num_computed_tokens = 13, 63
    half.step({"r": 1}, {"r": [20, 21, 22, 23]})
    full = prefix_hashes(ALGORITHM, NONE, request.ids, BLOCK)[3]
    assert half.bus.intents[1]["keys"] == [FINGERPRINT + full]


def test_a_failed_load_is_not_claimed_again() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [20, 21, 22, 23], 48)
    half.half.reported(RankReport(failed={"r": "generation_changed"}), ())
    assert half.bus.calls == [("loading", LEASE)]
    half.half.reported(None, {"r"})
    assert half.bus.calls[-1] == ("release", LEASE)
    assert half.half.matched(request, 0) == (0, False)
    assert half.counters.take()["loads|generation_changed"] == 1


def test_an_aborted_load_is_released_when_the_ranks_are_done() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [20, 21, 22, 23], 48)
    half.half.finished("r")
    assert half.bus.calls == [("loading", LEASE)]
    half.half.reported(RankReport(), {"r"})
    assert half.bus.calls[-1] == ("release", LEASE)
    assert half.half.loads.requests == 0


def test_aborted_while_waiting_for_an_answer() -> None:
    half = Half()
    half.new(51)
    half.half.finished("r")
    assert half.bus.calls == [("cancel", 1)]
    half.bus.answer(3)
    half.step()
    assert half.bus.calls[-1] == ("release", LEASE)


def test_without_a_tier_it_is_a_miss_at_once() -> None:
    half = Half()
    half.bus.current = None
    request = half.new(51)
    assert half.half.matched(request, 0) == (0, False)
    assert half.counters.take() == {"lookups|no_tier": 1, "pages_missed|no_tier": 4}


def test_a_session_that_changed_asks_again() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (48, True)
    half.bus.current = SessionId(2, 1)
    assert half.half.matched(request, 0) == (None, False)
    assert len(half.bus.lookups) == 2
    assert half.bus.calls == [("release", LEASE)]


def test_strict_decode_fails_what_is_not_all_there(caplog: pytest.LogCaptureFixture) -> None:
    half = Half(decode="strict")
    request = half.new(51)
    half.bus.answer(3)
    assert half.half.matched(request, 0) == (50, True)
    assert half.half.matched(request, 0) == (50, True)
    half.half.allocated(request, [20, 21, 22, 23], 50)
    (load,) = half.step().loads
    assert load.refuse == "prompt_incomplete"
    assert caplog.text.count("strict_decode_refused: request r: prompt_incomplete") == 1
    assert half.counters.take()["requests_refused|prompt_incomplete"] == 1


def test_what_another_connector_received_is_not_ours() -> None:
    half = Half()
    request = half.new(51)
    half.bus.answer(3)
    half.half.matched(request, 0)
    half.half.allocated(request, [20, 21, 22, 23], 0)  # the other one was chosen
    half.step()
    half.half.reported(None, {"r"})
    assert half.bus.calls == [("release", LEASE)]
    assert not [name for name in half.counters.take() if name.startswith("load") and "lookup" not in name]
