"""Rows of benchmarks as groups of bars."""

from __future__ import annotations

from pathlib import Path

from bench.drawn import Bars, draw_bars, groups
from charts.lines import Axis

BARS = Bars("rates", "How fast", Axis("GB/s"), ["page_KiB", "through"], ["put", "get"])
TABLES = [
    [{"page_KiB": 64, "through": "tcp", "put": 1.5, "get": ""}, {"page_KiB": 64, "through": "shm", "put": 2, "other": 9.0}],
    [{"through": "of another table", "put": 7.0}],
]


def test_rows_of_the_table_that_is_meant_are_groups_of_their_numbers() -> None:
    assert groups(TABLES, BARS) == {"64 page_KiB, tcp": {"put": 1.5}, "64 page_KiB, shm": {"put": 2}}


def test_charts_are_written_where_they_are_wanted_and_left_out_when_empty(tmp_path: Path) -> None:
    draw_bars(TABLES, [BARS, BARS._replace(file="none", label=["nothing"])], tmp_path / "new")
    draw_bars(TABLES, [BARS], None)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rates.svg"]
