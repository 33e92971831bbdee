"""The pure parts of scripts/bench/multiturn: when turns are asked, what an answer's events say, goodput, hits, losses."""

from __future__ import annotations

import dataclasses
import itertools
import json
import statistics
import xml.etree.ElementTree as ET

import pytest
from multiturn_runs import SHAPE, SLO, heard, run, seen, steady

from bench.turns.arrivals import by_session, poisson
from bench.turns.drawings import drawings
from bench.turns.figures import Loss, goodput, latencies, losses, share_within, spread
from bench.turns.heard import Reading
from bench.turns.hits import Growth, by_level
from bench.turns.record import Kind
from bench.turns.rows import ALL, again_row, loss_rows, ratios, total_row, turn_rows
from bench.turns.shape import Shape, kv_gib, page_bytes, pool_bytes, small_blocks
from deployment import ports

SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}


# When.


def test_each_turn_of_each_session_comes_once_and_in_order() -> None:
    arrivals = poisson(16, 5, 2.0, seed=1)
    assert {(one.session, one.turn) for one in arrivals} == set(itertools.product(range(16), range(5)))
    assert [one.at for one in arrivals] == sorted(one.at for one in arrivals)
    for times in by_session(arrivals, 16):
        assert times == sorted(times) and len(times) == 5


def test_the_stream_has_its_rate_and_its_seed() -> None:
    arrivals = poisson(100, 50, 4.0, seed=3)
    pauses = [later.at - earlier.at for earlier, later in itertools.pairwise(arrivals)]
    assert statistics.mean(pauses) == pytest.approx(0.25, rel=0.05)
    assert statistics.pstdev(pauses) == pytest.approx(0.25, rel=0.1)  # as in a Poisson stream, and no other
    assert arrivals == poisson(100, 50, 4.0, seed=3) != poisson(100, 50, 4.0, seed=4)
    with pytest.raises(ValueError):
        poisson(1, 1, 0.0, seed=1)


# How large.


def test_a_prompt_is_all_that_was_said_before() -> None:
    said = 0
    for turn in range(SHAPE.turns):
        said += SHAPE.piece(turn)
        assert SHAPE.prompt(turn) == said
        said += SHAPE.answer
    assert SHAPE.whole == said == 550
    assert (SHAPE.requests, SHAPE.pages) == (6, 2 * 18)


def test_pools_hold_everything_or_a_quarter() -> None:
    page = page_bytes(SMOLLM2)
    assert page == 30 * 2 * 3 * 64 * 4 * 32
    assert page_bytes({"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}) == 65536
    for small, least, most in ((False, 3.0, 3.05), (True, 0.25, 0.3)):
        assert least <= pool_bytes(SHAPE, page, small=small) / (SHAPE.pages * page) <= most
        assert pool_bytes(SHAPE, page, small=small) % (1 << 20) == 0
    assert kv_gib(SHAPE, page) == 1 and kv_gib(SHAPE._replace(sessions=40), page) == 2


def test_ps_own_cache_for_a_quarter_has_room_for_one_prompt_all_the_same() -> None:
    full = Shape(sessions=16, turns=5, first=250, growth=90, answer=40)
    assert (full.pages, small_blocks(full, 2048)) == (416, 105)
    assert small_blocks(SHAPE, 2048) == 65


def test_promised_ports_are_not_given_again() -> None:
    first = ports.from_system()
    second = ports.from_system(first)
    assert not set(first.all()) & set(second.all())


# What an answer's events say.


def sse(*pieces: tuple[list[int], str | None]) -> bytes:
    events = [json.dumps({"choices": [{"text": "", "token_ids": ids, "finish_reason": reason}]}) for ids, reason in pieces]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_tokens_are_stamped_when_the_bytes_that_complete_them_come(step: int) -> None:
    stream = sse(([5], None), ([6, 7], None), ([], None), ([8], "length"))
    reading = Reading()
    for at in range(0, len(stream), step):
        reading.feed(stream[at : at + step], float(at))
    assert (reading.ids, reading.finish, reading.done, reading.error) == ([5, 6, 7, 8], "length", True, "")
    assert [count for _, count in reading.events] == [1, 2, 1]
    ends = [end + 1 for end in range(len(stream)) if stream[end - 1 : end + 1] == b"\n\n"]
    wanted = [(end - 1) // step * step for end in (ends[0], ends[1], ends[3])]
    assert [at for at, _ in reading.events] == wanted


def test_an_error_in_a_stream_is_no_answer() -> None:
    reading = Reading()
    reading.feed(b'data: {"error": {"code": "pd_decode_interrupted"}}\n\ndata: [DONE]\n\n', 0.0)
    assert "pd_decode_interrupted" in reading.error
    assert heard((1.0, 1), error=reading.error).wrong(1) == reading.error


def test_answers_have_the_length_that_was_asked() -> None:
    one = heard((1.0, 2), (1.1, 1))
    assert one.wrong(3) == ""
    assert "3 ids" in one.wrong(4)
    assert "'stop'" in dataclasses.replace(one, finish="stop").wrong(3)


def test_what_the_router_held_back_is_in_the_first_tokens_time_and_no_credit_later() -> None:
    """P's token and D's first come together; on the other side they come one after the other. The rest is alike."""
    held = heard((1.0, 1), (1.0, 1), (1.2, 1), (1.4, 1))
    mixed = heard((0.5, 1), (1.0, 1), (1.2, 1), (1.4, 1))
    in_one = heard((1.0, 2), (1.2, 1), (1.4, 1))
    assert (held.ttft, mixed.ttft) == (1.0, 0.5)
    for one in (held, mixed, in_one):
        assert one.tpot == pytest.approx(0.2)
        assert one.gaps == pytest.approx([0.2, 0.2])
        assert one.whole == 1.4


def test_tokens_that_come_together_have_one_gap_and_share_its_time() -> None:
    one = heard((1.0, 1), (1.1, 1), (1.5, 3), (1.6, 1))
    assert one.gaps == pytest.approx([0.4, 0.1])
    assert one.tpot == pytest.approx(0.5 / 4)
    assert one.merged == 2


# What follows from many.


def test_percentiles_are_milliseconds() -> None:
    assert spread([n / 1000 for n in range(101)]) == pytest.approx((50.0, 90.0, 99.0))
    with pytest.raises(ValueError):
        spread([])


def test_a_request_is_good_within_both_limits_only() -> None:
    answers = [steady(0.9, 0.09), steady(1.1, 0.01), steady(0.1, 0.11), steady(0.2, 0.02)]
    assert goodput(answers, 4.0, SLO) == 0.5
    assert share_within(answers, 8, SLO) == 0.25  # those without an answer count too
    shares = [share_within(answers, 8, SLO.times(scale)) for scale in (0.1, 0.2, 1.0, 1.2, 2.0)]
    assert shares == [0.0, 0.125, 0.25, 0.5, 0.5]


def test_a_loss_is_told_from_a_gain_and_from_noise() -> None:
    found = losses(
        {"ttft": 1.5, "itl": 0.5, "tpot": 1.04, "ids/s": 0.5, "goodput": 1.5, "more": 0.97}, ("ids/s", "goodput", "more")
    )
    assert found == [Loss("ids/s", 0.5), Loss("ttft", 1.5)]
    assert losses({"goodput": 0.0}, ("goodput",)) == [Loss("goodput", 0.0)]


def test_ratios_are_ours_over_theirs() -> None:
    ours, theirs = run(Kind.PD, 0.8, 0.05, seconds=20.0), run(Kind.MIXED, 0.4, 0.1)
    found = ratios(ours, theirs, SHAPE, SLO)
    assert found["ttft p50"] == pytest.approx(2.0)
    assert found["tpot p99"] == pytest.approx(0.5)
    assert found["answer ids/s"] == pytest.approx(0.5)
    assert found["CPU per id"] == pytest.approx(1.0)
    said = {row["what"] for row in loss_rows(ours, theirs, SHAPE, SLO)}
    assert {"answer ids/s", "ttft p99", "ttft alone", "turn 3: ttft p50"} <= said
    assert not any("tpot" in what or "itl" in what for what in said)


def test_a_row_per_turn_and_one_for_all() -> None:
    rows = turn_rows(run(Kind.MIXED, 0.4, 0.1), SHAPE)
    assert [(row["turn"], row["prompt"], row["n"]) for row in rows] == [("1", 250, 2), ("2", 380, 2), ("3", 510, 2), (ALL, "", 6)]
    assert (rows[0]["ttft p50"], rows[0]["tpot p99"], rows[0]["itl p90"]) == (400.0, 100.0, 100.0)


def test_totals_count_failures_and_answers_that_differ() -> None:
    one = run(Kind.PD, 0.4, 0.05)
    answers = (dataclasses.replace(one.heard[0], error="500"), *one.heard[1:])
    one = dataclasses.replace(one, heard=answers, left={"router": 1.0})
    like = {(each.session, each.turn): each.ids for each in one.heard} | {(1, 2): (9,)}
    row = total_row(one, SHAPE, SLO, like)
    assert (row["requests"], row["failed"], row["same answers"], row["left behind"]) == (6, 1, 4, "router")
    assert row["goodput"] == 0.5 and row["client's share of a core"] == 0.1
    assert one.failures(SHAPE.answer, SHAPE.requests) == ["session 0, turn 0: 500"]
    assert len(dataclasses.replace(one, heard=answers[:3]).failures(SHAPE.answer, SHAPE.requests)) == 2


def test_positions_by_where_they_came_from() -> None:
    source = "vllm_prompt_tokens_by_source_total__source__"
    before = {"D": seen(**{source + "local_compute": 7.0}), "tier b": seen(), "router": seen()}
    counted = {source + "local_compute": 17.0, source + "local_cache_hit": 300.0, source + "external_kv_transfer": 90.0}
    counted |= {"pegaflow_prompt_positions_computed_total": 74.0, "pegaflow_prompt_last_positions_computed_total": 10.0}
    counted |= {"pegaflow_lookup_pages_total__source__remote": 4.0, "pegaflow_lookup_pages_total__source__local": 1.0}
    after = {"D": seen(**counted), "tier b": seen(pegaflow_tier_pages_evicted_total=3.0)}
    after["router"] = seen(pegaflow_router_requests_total__plan__replay=1.0)
    growth = Growth(before, after)
    assert growth.decode_positions == 65  # 64 that were not the last of a prompt, and one of the replay
    (row,) = by_level(growth)
    assert (row["engine"], row["computed"], row["own prefix cache"], row["from the tier"]) == ("D", 65, 300, 90)
    assert (row["pages: memory"], row["pages: other tier"], row["pages: disk"], row["evicted there"]) == (1, 4, 0, 3)
    mixed = Growth({"mixed 1": seen()}, {"mixed 1": seen(**{source + "local_compute": 17.0})})
    assert by_level(mixed) == [{"engine": "mixed 1", "computed": 17, "own prefix cache": 0, "from the tier": 0}]


def test_what_is_computed_again_is_told_from_what_is_new() -> None:
    source, computed = "vllm_prompt_tokens_by_source_total__source__local_compute", "pegaflow_prompt_positions_computed_total"
    new, asked = 2 * (250 + 90 + 90), 6 * 250  # so long these say that each was
    before = {"mixed 1": seen(), "mixed 2": seen()}
    after = {"mixed 1": seen(**{source: 500.0}), "mixed 2": seen(**{source: 400.0, "vllm_num_preemptions_total": 2.0})}
    row = again_row(dataclasses.replace(run(Kind.CHUNKED, 0.4, 0.1), growth=Growth(before, after)), SHAPE)
    assert (row["positions of prompts"], row["new"], row["recomputed"], row["preempted"]) == (asked, new, 40, 2)
    before = {"P": seen(), "D": seen(), "tier a": seen()}
    after = {"P": seen(**{computed: 1000.0, source: 7.0}), "D": seen(**{computed: 3.0})}
    after["tier a"] = seen(pegaflow_tier_pages_evicted_total=9.0)
    row = again_row(dataclasses.replace(run(Kind.SMALL, 0.4, 0.1), growth=Growth(before, after)), SHAPE)
    assert (row["recomputed"], row["decode positions computed"], row["pages evicted"], row["preempted"]) == (140, 3, 9, 0)


def test_charts_have_a_point_per_turn() -> None:
    found = drawings([run(Kind.MIXED, 0.4, 0.1), run(Kind.CHUNKED, 0.5, 0.07), run(Kind.PD, 0.8, 0.05)], SHAPE, SLO)
    assert set(found) == {f"multiturn_{name}_closed.svg" for name in ("ttft", "itl", "slo")}
    dots = [dot for dot in ET.fromstring(found["multiturn_ttft_closed.svg"]).iter() if dot.tag.endswith("circle")]
    assert len(dots) == 6 * SHAPE.turns
    assert "mixed-chunked p99" in found["multiturn_itl_closed.svg"]


def test_latencies_pool_the_gaps_of_all() -> None:
    found = latencies([heard((1.0, 1), (1.1, 1), (1.2, 1)), heard((2.0, 1), (2.1, 1), (2.4, 1))])
    assert found.itl.p50 == pytest.approx(200.0)
    assert found.ttft.p50 == pytest.approx(1500.0)


def test_who_waits_for_an_answer_before_waits_from_when_the_turn_was_due() -> None:
    one = heard((0.5, 1), (0.6, 1), (0.7, 1), late=2.0)
    assert (one.ttft, one.whole) == (2.5, 2.7)
    assert one.tpot == pytest.approx(0.1)
    assert goodput([one], 1.0, SLO) == 0.0, "within a second of being sent, and not of being due"
