"""What every benchmark writes and how it ends: scripts/bench/report."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from bench.report import EX_MISSED, EX_WRONG, at_least, at_most, ended, left_out, show, versions

MET, MISSED = at_most("latency", 1.0, 2.0), at_most("latency", 3.0, 2.0)


@pytest.mark.parametrize(
    "goals, how, code",
    [
        ([], {}, 0),
        ([MET], {}, 0),
        ([MET, MISSED], {}, EX_MISSED),
        ([MET], {"missing": True}, EX_MISSED),
        ([MET], {"wrong": True}, EX_WRONG),
        ([MISSED], {"wrong": True, "missing": True}, EX_WRONG),
        ([at_least("ratio", math.nan, 1.0)], {}, EX_MISSED),
    ],
)
def test_a_benchmark_ends_as_chaos_does(goals: list[Any], how: dict[str, bool], code: int) -> None:
    assert ended(goals, **how) == code
    assert (EX_WRONG, EX_MISSED) == (1, 3), "those of scripts/chaos"


def test_who_is_left_out_has_a_row_with_its_reason() -> None:
    assert left_out({"mooncake": "libibverbs.so.1 is missing\nand more"}) == [
        {"left out": "mooncake", "because": "libibverbs.so.1 is missing"}
    ]
    assert left_out({}) == []


def test_what_is_no_number_is_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """RFC 8259 has neither NaN nor infinities, and readers refuse them."""
    rows = [{"row": "a", "new/old": math.nan, "each": [1.5, math.inf], "pair": (-math.inf, 2)}, {"row": "b", "n": 3, "ok": True}]
    show([rows], [at_least("ratio", math.nan, 1.0)], tmp_path / "out.json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    document = json.loads((tmp_path / "out.json").read_text(), parse_constant=refuse)
    assert document["rows"] == [
        {"row": "a", "new/old": None, "each": [1.5, None], "pair": [None, 2]},
        {"row": "b", "n": 3, "ok": True},
    ]
    assert document["goals"] == [{"name": "ratio", "value": None, "goal": ">= 1.0", "met": False}]
    assert "wanted >= 1.0: NOT MET" in capsys.readouterr().out


def test_the_versions_have_what_figures_depend_on() -> None:
    found = versions()
    for name in ("redis", "hiredis", "aiohttp", "falcon", "uvicorn"):
        assert found[name] == version(name)
