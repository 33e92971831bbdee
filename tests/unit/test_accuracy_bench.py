"""The pure parts of scripts/bench/accuracy: numeric paths, scores, and what counters prove."""

from __future__ import annotations

import importlib
import signal
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import pytest
from accuracy_parts import answer, counters, prompt

from bench.needles.drawings import charts
from bench.needles.pace import pace
from bench.needles.path import Path, Way, after_full_pages, path
from bench.needles.prompts import CHUNK, SHORT_LENGTHS, batches
from bench.needles.score import (
    Part,
    Reference,
    first_difference,
    forwardable,
    joined,
    judged,
    other_scores,
    row,
    told_alone,
    unproven,
    wrong,
)


def test_batches_keep_the_order_and_their_bound() -> None:
    prompts = [prompt(33, f"s{i}") for i in range(5)] + [prompt(320, f"l{i}") for i in range(5)] + [prompt(9600, "huge")]
    found = batches(prompts, 25)
    assert [one for batch in found for group in batch for one in group] == prompts
    for batch in found:
        groups = [{one.group for one in group} for group in batch]
        assert all(len(names) == 1 for names in groups) and len({*map(frozenset, groups)}) == len(groups)
        assert sum(one.pages for group in batch for one in group) <= 25 or batch == [[prompts[-1]]]
    assert [len(batch) for batch in found] == [2, 1, 1, 1] and batches([], 25) == []


@pytest.mark.parametrize(
    ("way", "ids", "expected"),
    [
        (Way.COLD, 50, Path.SAME),
        # 1,024 and one: alone, the last position is computed in a step of its own, and so does who has the rest in a cache.
        (Way.DISK, CHUNK + 1, Path.SAME),
        (Way.REMOTE, CHUNK + 1, Path.SAME),
        (Way.AGAIN, 7 * CHUNK + 1, Path.SAME),
        (Way.DISK, CHUNK + 2, Path.SAME),
        (Way.REMOTE, CHUNK + 2, Path.OTHER),
        # 32 and one: cold in one step of 33; who has 32 in a cache computes one.
        (Way.AGAIN, 33, Path.OWN_CACHE),
        (Way.DISK, 33, Path.OWN_CACHE),
        (Way.REMOTE, 33, Path.OWN_CACHE),
        # 32 and 18: P computes 18, and D, which loads the tail, one.
        (Way.DISK, 50, Path.OWN_CACHE),
        (Way.REMOTE, 50, Path.OTHER),
        # P loads nothing of less than a page; of whole pages all rows but one, where vLLM's own cache leaves a block.
        (Way.DISK, 20, Path.SAME),
        (Way.DISK, 64, Path.OTHER),
    ],
)
def test_paths(way: Way, ids: int, expected: Path) -> None:
    assert path(way, ids) is expected


def test_p_always_has_a_position_left() -> None:
    assert [after_full_pages(ids) for ids in (1, 31, 32, 33, 64, 65, CHUNK + 1)] == [1, 31, 1, 1, 1, 1, 1]


def test_the_shipped_prompts_are_on_comparable_paths_but_one_kind() -> None:
    assert all(path(way, thousand * CHUNK + 1) is Path.SAME for way in Way for thousand in range(1, 8))
    assert [ids for ids in SHORT_LENGTHS for way in Way if path(way, ids) is Path.OTHER] == [50]


def test_differences_have_a_place() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == first_difference([1, 2, 3], [1, 2]) == 2


def test_other_ids_are_wrong_where_the_path_is_the_same() -> None:
    one = prompt(CHUNK + 1)
    right = {"one": Reference(answer(1, 2, 3), answer(1, 2, 3))}
    assert wrong(Part(Way.DISK, [one], [answer(1, 2, 3)]), right) == []
    (text,) = wrong(Part(Way.DISK, [one], [answer(1, 9, 3)]), right)
    assert "differ at 1" in text and "one" in text


def test_on_the_own_caches_path_nobody_can_say_where_the_plain_vllm_differs_from_itself() -> None:
    one = prompt(33)
    steady = {"one": Reference(answer(1, 2), answer(1, 2))}
    torn = {"one": Reference(answer(1, 2), answer(1, 3))}
    part = Part(Way.REMOTE, [one], [answer(1, 3)])
    assert len(wrong(part, steady)) == 1
    assert wrong(part, torn) == []
    assert "1 not judged" in row(part, torn)["path"] and row(part, torn)["ids equal"] == "0 of 1"
    assert row(part, steady)["path"] == str(Path.OWN_CACHE)


def test_on_another_path_ids_are_shown_and_not_judged() -> None:
    part = Part(Way.REMOTE, [prompt(50)], [answer(7)])
    right = {"one": Reference(answer(1), answer(1))}
    assert wrong(part, right) == []
    found = row(part, right)
    assert (found["ids equal"], found["first differs at"], found["path"]) == ("0 of 1", 0, "not the same: not judged")


def test_a_score_that_is_not_the_plain_vllms_counts_on_every_path_in_both_directions() -> None:
    one = prompt(50, secret="12345")
    yes, no = answer(1, text=" 12345."), answer(1, text=" 12354.")
    for mine, alone, wanted in ((yes, no, 1), (no, yes, 1), (yes, yes, 0), (no, no, 0)):
        assert len(other_scores([Part(Way.REMOTE, [one], [mine])], {"one": Reference(alone, alone)})) == wanted


def test_parts_of_one_group_and_way_make_one_row() -> None:
    first, second = prompt(33, "one", "12345"), prompt(33, "two", "12345")
    right = {name: Reference(answer(1, text="12345"), answer(1)) for name in ("one", "two")}
    parts = [
        Part(Way.COLD, [first], [answer(1, text="12345", first_after=0.1)], counters(p_positions=33, b_pages_fetched=2)),
        Part(Way.DIRECT, [first, second], [answer(1, text="12345")] * 2),
        Part(Way.COLD, [second], [answer(1, text="no", first_after=0.3)], counters(p_positions=33, b_pages_fetched=2)),
    ]
    forwarded = {"d_positions": 1.0, "d_last_positions": 1.0}
    parts = [part if part.grown is None else replace(part, grown=part.grown._replace(**forwarded)) for part in parts]
    direct, cold = joined(parts)
    assert (direct.way, cold.way) == (Way.DIRECT, Way.COLD)
    found = row(cold, right)
    assert (found["score"], found["at 50 %"], found["at 10 %"]) == ("1 of 2", "1 of 2", "-")
    assert (found["computed on P"], found["computed on D"], found["from the other tier"]) == (66, 0, 4)
    assert found["first token ms"] == pytest.approx(200) and row(direct, right)["computed on P"] == "-"


PROOF = {
    Way.COLD: counters(p_positions=83, b_pages_fetched=4, d_positions=2, d_last_positions=2),
    Way.DISK: counters(p_positions=19, a_disk_pages_read=2, b_pages_fetched=4, d_positions=2, d_last_positions=2),
    Way.REMOTE: counters(d_positions=2, d_last_positions=2, b_pages_fetched=3, d_pages_loaded=3),
}


@pytest.mark.parametrize(
    ("way", "field", "off"),
    [
        (Way.COLD, "p_positions", -1),
        (Way.COLD, "b_pages_fetched", -1),
        (Way.COLD, "d_positions", +1),
        (Way.COLD, "replays", +1),
        (Way.DISK, "p_positions", +32),
        (Way.DISK, "a_disk_pages_read", -1),
        (Way.DISK, "b_pages_fetched", -1),
        (Way.DISK, "d_positions", +1),
        (Way.REMOTE, "p_positions", +1),
        (Way.REMOTE, "d_positions", +1),
        (Way.REMOTE, "b_pages_fetched", -1),
        (Way.REMOTE, "d_pages_loaded", -1),
        (Way.REMOTE, "b_disk_pages_read", +1),
    ],
)
def test_counters_prove_a_way(way: Way, field: str, off: int) -> None:
    """Prompts of 33 and 50 ids: two pages each, one of them full; P has 1 and 18 positions left."""
    proven = PROOF[way]
    part = Part(way, [prompt(33), prompt(50)], [answer(1)] * 2, proven)
    assert unproven(part) == []
    less = Part(way, part.prompts, part.answers, proven._replace(**{field: getattr(proven, field) + off}))
    assert len(unproven(less)) >= 1 and all(str(way) in text for text in unproven(less))


def test_a_prompt_whose_first_token_is_no_text_is_sent_whole_and_d_computes_its_last_position() -> None:
    parts = [prompt(97, "half"), prompt(97, "whole")]
    grown = counters(p_positions=194, b_pages_fetched=7, d_positions=2, d_last_positions=2, replays=1)
    proven = Part(Way.COLD, parts, [answer(1)] * 2, grown, frozenset({"half"}))
    assert unproven(proven) == []
    assert unproven(replace(proven, replayed=frozenset())) != [], "a replay without need"
    assert unproven(replace(proven, grown=grown._replace(replays=0))) != []
    assert proven.plus(replace(proven, replayed=frozenset({"whole"}))).replayed == {"half", "whole"}


@pytest.mark.parametrize(("text", "whole"), [("a", True), (" ", True), ("", False), ("\ufffd", False), ("x\ufffd", False)])
def test_what_can_stand_at_the_end_of_a_prompt_as_text(text: str, whole: bool) -> None:
    assert forwardable(text) is whole


def test_the_pace_is_that_of_two_prefills() -> None:
    def seconds(ids: int) -> float:
        return 0.001 * ids + 1e-7 * ids * ids / 2

    found = pace((1025, seconds(1025)), (3073, seconds(3073)), 0.04)
    assert found.prefill(7169) == pytest.approx(seconds(7169))
    assert found.rate(1024) == pytest.approx(1024 / seconds(1024))
    noisy = pace((1000, 1.0), (3000, 2.9), 0.04)  # a long one that was faster per id: no prompt costs less than nothing
    assert noisy.prefill(7000) == pytest.approx(7.0)
    one = prompt(1025)
    assert found.run([one, one], 1) - found.run([one], 1) == pytest.approx(2 * seconds(1025) + 5 * 16 * 0.04)


def test_drawings_have_a_line_for_each_way() -> None:
    parts = [
        Part(way, [prompt(ids, "one", "12345")], [answer(1, text="12345", first_after=ids / 1e4)])
        for way in (Way.DIRECT, Way.COLD)
        for ids in (1025, 2049)
    ]
    found = charts(parts)
    assert set(found) == {"accuracy_score.svg", "accuracy_first_token.svg"}
    for text in found.values():
        assert len(ET.fromstring(text).findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert set(charts([Part(Way.COLD, [prompt(33)], [answer(1, first_after=0.1)])])) == {"accuracy_first_token.svg"}


# What cannot fail proves nothing.


def test_an_answer_without_ids_is_wrong_on_every_path() -> None:
    nothing = {"one": Reference(answer(), answer())}
    for way in Way:
        for ids in (50, CHUNK + 1):
            (text,) = wrong(Part(way, [prompt(ids)], [answer(text="no answer")]), nothing)
            assert "no ids" in text and str(way) in text


def test_judged_are_answers_that_must_be_equal() -> None:
    one, right = prompt(33), Reference(answer(1), answer(1))
    parts = [Part(way, [one], [answer(1)]) for way in Way]
    assert judged(parts, {"one": right}) == 3, "all but those of the plain vLLM"
    assert judged(parts, {"one": right._replace(again=answer(2))}) == 1, "on its own cache's path nobody can say"
    assert judged([Part(Way.REMOTE, [prompt(50)], [answer(1)])], {"one": right}) == 0


def test_secrets_that_the_plain_vllm_told_are_counted() -> None:
    prompts = [prompt(33, "one", "12345"), prompt(33, "two", "54321"), prompt(33, "three")]
    right = {"one": Reference(answer(1, text="12345"), answer(1)), "two": Reference(answer(1, text="12345"), answer(1))}
    assert told_alone(prompts, right) == 1


def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FilePath(__file__).parents[2] / "scripts" / "bench"))
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    return importlib.import_module("accuracy")


def test_nothing_to_be_compared_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy = program(monkeypatch)
    monkeypatch.setattr(accuracy, "make", lambda *_: pytest.fail("it went on"))
    monkeypatch.setattr(sys, "argv", ["accuracy", "--keys", "0", "--shorts", "0"])
    with pytest.raises(SystemExit, match="2"):
        accuracy.main()
    assert "nothing would be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "end", "code"),
    [("12345", None, 0), ("no", None, 1), ("12345", KeyboardInterrupt(), 130), ("12345", OSError("full"), None)],
)
def test_a_plain_vllm_that_tells_nothing_is_no_measure_and_what_was_found_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: FilePath,
    text: str,
    end: BaseException | None,
    code: int | None,
) -> None:
    accuracy = program(monkeypatch)
    score, ways = importlib.import_module("needles.score"), importlib.import_module("needles.path").Way

    def measure(prompts: list[Any], run: FilePath, disk: FilePath, found: Any) -> None:
        said = answer(1, text=text)
        found.references["one"] = score.Reference(said, said)
        found.parts += [score.Part(ways.DIRECT, prompts, [said]), score.Part(ways.COLD, prompts, [said], PROOF_OF_ONE)]
        if end is not None:
            raise end

    monkeypatch.setattr(accuracy, "make", lambda *_: [prompt(33, "one", "12345")])
    for name in ("check_memory", "check_disk"):
        monkeypatch.setattr(accuracy, name, lambda *_: None)
    monkeypatch.setattr(accuracy, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["accuracy", "--disk-dir", str(tmp_path)])
    if code is None:
        with pytest.raises(OSError, match="full"):
            accuracy.main()
    else:
        assert accuracy.main() == code
    out = capsys.readouterr().out
    assert f"pass words that the plain vLLM told: {int(text != 'no')}" in out
    assert ("ended before its time" in out) == (end is not None)


PROOF_OF_ONE = counters(p_positions=33, b_pages_fetched=2, d_positions=1, d_last_positions=1)
