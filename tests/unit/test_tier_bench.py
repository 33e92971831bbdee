"""The arithmetic of scripts/bench/tier: spans become rates, rounds become ratios, figures become rows and goals."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from bench.tiers.batch import Batch, batch_keys
from bench.tiers.figures import Rounds, Span
from bench.tiers.rows import THEIR_GET, THEIR_PUT, disk_row, left_out, transfer_row

MIB = 1 << 20
BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_a_rate_is_that_of_the_median_round() -> None:
    rounds = Rounds(MIB)
    for seconds in (1.0, 4.0, 2.0):
        rounds.add("put", Span(10.0, 10.0 + seconds, 64))
    assert rounds.pages_s("put") == 32
    assert rounds.gb_s("put") == pytest.approx(32 * MIB / 1e9)
    assert "put" in rounds and "get" not in rounds


def test_a_ratio_is_taken_within_its_round() -> None:
    """A machine that is ten times as slow in one round moves nothing; nor do rates of medians that come from different rounds."""
    rounds = Rounds(MIB)
    for slow in (1, 10, 1):
        rounds.add("ours", Span(0.0, 1.0 * slow, 64))
        rounds.add("theirs", Span(0.0, 3.0 * slow, 64))
    assert rounds.ratio("ours", "theirs") == pytest.approx(3.0)
    assert rounds.ratio("theirs", "ours") == pytest.approx(1 / 3)


def test_a_ratio_counts_pages_not_seconds() -> None:
    rounds = Rounds(MIB)
    rounds.add("all", Span(0.0, 1.0, 64))
    rounds.add("half of them", Span(0.0, 1.0, 32))
    assert rounds.ratio("all", "half of them") == 2


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    rounds = Rounds(MIB)
    for ours, theirs in ((1.0, 2.0), (2.0, 1.0), (30.0, 60.0)):
        rounds.add("ours", Span(0.0, ours, 1))
        rounds.add("theirs", Span(0.0, theirs, 1))
    assert rounds.ratio("ours", "theirs") == pytest.approx(2.0)


@pytest.mark.parametrize("span", [Span(1.0, 1.0, 8), Span(2.0, 1.0, 8), Span(0.0, 1.0, 0)])
def test_what_cannot_be_is_no_figure(span: Span) -> None:
    """Nothing evicted, for example, is not a rate of evictions."""
    with pytest.raises(ValueError):
        Rounds(MIB).add("evict", span)


def test_rounds_that_are_missing_have_no_ratio() -> None:
    rounds = Rounds(MIB)
    rounds.add("ours", Span(0.0, 1.0, 1))
    rounds.add("ours", Span(0.0, 1.0, 1))
    rounds.add("theirs", Span(0.0, 1.0, 1))
    with pytest.raises(ValueError):
        rounds.ratio("ours", "theirs")
    with pytest.raises(KeyError):
        rounds.ratio("ours", "nobody")


def test_a_row_has_the_peer_only_where_it_was_measured() -> None:
    rounds = Rounds(MIB)
    for way, seconds in (("copy", 1.0), ("put", 2.0), ("get", 2.0), ("mover get", 4.0), ("tcp get", 8.0)):
        rounds.add(way, Span(0.0, seconds, 64))
    alone = transfer_row(MIB, 64 * MIB, rounds)
    assert alone["pages"] == 64 and alone["put/copy"] == 0.5
    assert not any("mooncake" in name for name in alone)
    rounds.add(THEIR_PUT, Span(0.0, 8.0, 64))
    rounds.add(THEIR_GET, Span(0.0, 4.0, 64))
    beside = transfer_row(MIB, 64 * MIB, rounds)
    assert {name: value for name, value in beside.items() if name.endswith("/mooncake")} == {
        "put/mooncake": 4.0,
        "get/mooncake": 2.0,
        "mover get/mooncake": 1.0,
        "tcp get/mooncake": 0.5,
    }


def test_every_goal_names_the_transports_and_one_is_of_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory over TCP says little of the stores; TCP over TCP does."""
    monkeypatch.syspath_prepend(str(BENCH))
    figures, transfer = importlib.import_module("tiers.figures"), importlib.import_module("tiers.transfer")
    rounds = figures.Rounds(MIB)
    for way, seconds in (("put", 2.0), ("get", 2.0), ("mover get", 4.0), ("tcp get", 8.0)):
        rounds.add(way, figures.Span(0.0, seconds, 64))
    assert transfer.transfer_goals(MIB, rounds) == []
    rounds.add(THEIR_PUT, figures.Span(0.0, 8.0, 64))
    rounds.add(THEIR_GET, figures.Span(0.0, 4.0, 64))
    assert [(goal.name, goal.value, goal.met) for goal in transfer.transfer_goals(MIB, rounds)] == [
        ("1024 KiB, put / mooncake put: shared memory over TCP", 4.0, True),
        ("1024 KiB, get / mooncake get: shared memory over TCP", 2.0, True),
        ("1024 KiB, mover get / mooncake get: cma over TCP", 1.0, False),
        ("1024 KiB, tcp get / mooncake get: TCP over TCP", 0.5, False),
    ]


def test_a_disk_row_says_how_the_disk_was_used() -> None:
    rounds = Rounds(MIB)
    for way, seconds in (("write", 2.0), ("read", 1.0), ("dd write", 1.0), ("dd read", 3.0)):
        rounds.add(way, Span(0.0, seconds, 8))
    row = disk_row(MIB, rounds, False)
    assert row["io"] == "through the kernel's cache"
    assert (row["write/dd"], row["read/dd"]) == (0.5, 3.0)
    assert not any("fio" in name for name in row)


def test_a_page_with_another_byte_or_of_another_key_is_found() -> None:
    keys = batch_keys(7, 3)
    assert keys == batch_keys(7, 3) and len(set(keys) | set(batch_keys(8, 3))) == 6
    source, target = Batch(4, 4096), Batch(4, 4096)
    source.fill()
    source.stamp(keys)
    assert target.differ(source, 3) == 3
    target.copy(source, 3)
    assert target.differ(source, 3) == 0 and target.differ(source, 4) == 1
    target.memory[2 * 4096 - 1] ^= 1
    assert target.differ(source, 3) == 1
    source.stamp(batch_keys(8, 3))
    assert target.differ(source, 3) == 3


def test_goals_that_are_left_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    tier, missing = importlib.import_module("tier"), importlib.import_module("private_venv").Missing

    def cannot_be_had(*_: object) -> None:
        raise missing("libibverbs.so.1 is missing\nand more")

    monkeypatch.setattr(tier.Mooncakes, "start", cannot_be_had)
    for asked, why in ((True, "libibverbs.so.1 is missing"), (False, "--no-mooncake")):
        rows, about, goals = tier.transfer_rows((), 1, asked, iter(range(9)))
        assert (rows, about, goals) == ([], [left_out(why)], [])
    assert "goals" in left_out(why)["left out"] and left_out("a\nb")["because"] == "a"


@pytest.mark.parametrize("asked, why, code", [((), "cannot be had", 3), (("--no-mooncake",), "--no-mooncake", 0)])
def test_who_asked_for_mooncake_and_did_not_get_it_hears_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: tuple[str, ...], why: str, code: int
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    tier, out = importlib.import_module("tier"), tmp_path / "out.json"
    monkeypatch.setattr(tier, "transfer_rows", lambda *_: ([{"put/get page_KiB": 64}], [left_out(why)], []))
    monkeypatch.setattr(sys, "argv", ["tier", "--only", "transfer", *asked, "--json", str(out)])
    assert tier.main() == code
    assert left_out(why) in json.loads(out.read_text())["rows"]


def test_a_goal_that_is_missed_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    tier, report = importlib.import_module("tier"), importlib.import_module("report")
    found = [report.at_least("64 KiB, put / mooncake put", 1.5, 2.0)]
    monkeypatch.setattr(tier, "transfer_rows", lambda *_: ([{"put/get page_KiB": 64}], [{"peer": "mooncake"}], found))
    monkeypatch.setattr(sys, "argv", ["tier", "--only", "transfer"])
    assert tier.main() == 3
