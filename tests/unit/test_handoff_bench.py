"""The pure parts of scripts/bench/handoff and versus: stages of a handoff, and ratios of two checkouts."""

from __future__ import annotations

import math

import pytest

from bench.handoffs.timeline import STAGES, Handoff, handoff, row, series
from bench.pairs.ratios import OtherShape, ratios

MOMENTS = {"added": 10.005, "claimed": 10.008, "received": 10.018, "scheduled": 10.019, "first": 10.049}


def test_the_handoff_ends_where_the_first_decode_step_begins() -> None:
    seen = handoff(10.0, MOMENTS, 10.055)
    assert [round(stage, 6) for stage in seen.stages] == [0.005, 0.003, 0.010, 0.001, 0.030, 0.006]
    assert math.isclose(seen.to_step, 0.019) and math.isclose(seen.to_client, 0.055)


@pytest.mark.parametrize("name", MOMENTS)
def test_a_request_that_was_not_loaded_is_no_handoff(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        handoff(10.0, {moment: at for moment, at in MOMENTS.items() if moment != name}, 10.055)


@pytest.mark.parametrize("answered, heard", [(10.006, 10.055), (10.0, 10.048)])
def test_moments_out_of_order_are_no_figures(answered: float, heard: float) -> None:
    with pytest.raises(ValueError, match="not in order"):
        handoff(answered, MOMENTS, heard)


def test_a_row_has_milliseconds() -> None:
    found = row(
        1000, 32, [Handoff((0.001, 0.002, 0.003, 0.004, 0.030, 0.005)), Handoff((0.003, 0.002, 0.003, 0.004, 0.030, 0.005))]
    )
    assert found["prompt"] == 1000 and found["pages"] == 32 and found["n"] == 2
    assert [round(found[name]) for name in STAGES] == [2, 2, 3, 4, 30, 5]
    assert round(found["handoff p50"]) == 11 and round(found["to client p50"]) == 46
    drawn = series([found])
    assert drawn["handoff p50"] == [(1000.0, found["handoff p50"])] and set(STAGES) < set(drawn)


def test_ratios_are_of_medians_and_rows_keep_their_names() -> None:
    def rows(*values: float) -> list[list[dict[str, object]]]:
        return [[{"what": "put", "bytes": 65536, "us": value, "pages": 7}, {"goal": "x"}] for value in values]

    (found,) = ratios(rows(10.0, 12.0, 30.0), rows(6.0, 5.0, 6.0))
    assert found["row"] == "put 65536 7" and found["figure"] == "us"
    assert (found["old"], found["new"], found["new/old"]) == (12.0, 6.0, 0.5)
    assert found["apart"] == 3.0, "the worse side"
    with pytest.raises(OtherShape):
        ratios(rows(10.0), rows(6.0), wanted="ms")


def test_a_whole_number_among_fractions_is_a_figure_and_a_new_column_is_left_out() -> None:
    old: list[list[dict[str, object]]] = [[{"us": 4}], [{"us": 4.5}]]
    new: list[list[dict[str, object]]] = [[{"us": 2.125, "more": 1.0}], [{"us": 2.125, "more": 1.0}]]
    (found,) = ratios(old, new)
    assert found["figure"] == "us" and found["new/old"] == 0.5


def test_what_grew_from_nothing_has_no_ratio() -> None:
    (found,) = ratios([[{"us": 0.0}]], [[{"us": 2.0}]])
    assert math.isnan(found["new/old"])


def test_rows_that_one_side_lacks_are_left_out() -> None:
    old: list[list[dict[str, object]]] = [[{"what": "put", "us": 4.0}, {"what": "get", "us": 8.0}]]
    new: list[list[dict[str, object]]] = [[{"what": "echo", "us": 1.0}, {"what": "get", "us": 2.0}]]
    (found,) = ratios(old, new)
    assert found["row"] == "get" and found["new/old"] == 0.25
    with pytest.raises(OtherShape):
        ratios(old, [[{"what": "echo", "us": 1.0}]])
