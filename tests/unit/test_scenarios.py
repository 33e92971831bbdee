"""What scripts/chaos plays, allows and says."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from deployment.answers import Answer
from deployment.cases import Case
from deployment.http import HttpFailure, Server
from deployment.reference import Expected
from deployment.supervision import SERVICES
from deployment.traffic import Kind, Outcome, Seen, refusal
from failures.beside import REQUESTS, beside
from failures.result import COLOURS, Result, Total, Verdict, matrix, picture, total
from failures.scenario import ALL, ENGINES, How, Phase, Scenario, allowed, allowed_beside


def test_everybody_everywhere_in_every_way() -> None:
    assert len({one.name for one in ALL}) == len(ALL) == len(SERVICES) * len(How) * len(Phase)


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_only_who_serves_the_request_may_fail_it(scenario: Scenario) -> None:
    seen = allowed(scenario)
    assert Seen.RIGHT in seen and Seen.WRONG not in seen and Seen.LEFT not in seen
    if scenario.how is How.STOP or scenario.victim not in (*ENGINES, "router"):
        assert seen == {Seen.RIGHT}


@pytest.mark.parametrize(
    ("phase", "victim", "more"),
    [
        (Phase.PREFILLING, "vllm-p", {Seen.REFUSED}),
        (Phase.DECODING, "vllm-p", set()),
        (Phase.QUEUED, "vllm-d", {Seen.REFUSED}),
        (Phase.FETCHING, "vllm-d", {Seen.REFUSED}),
        (Phase.DECODING, "vllm-d", {Seen.BROKEN}),
        (Phase.QUEUED, "router", {Seen.NO_ANSWER}),
    ],
)
def test_what_a_death_may_cost(phase: Phase, victim: str, more: set[Seen]) -> None:
    assert allowed(Scenario(phase, victim, How.KILL)) == {Seen.RIGHT} | more


def test_an_engine_that_is_told_to_end_may_begin_to_answer() -> None:
    assert allowed(Scenario(Phase.LOADING, "vllm-d", How.RESTART)) == {Seen.RIGHT, Seen.REFUSED, Seen.BROKEN}
    assert Seen.BROKEN not in allowed(Scenario(Phase.LOADING, "vllm-d", How.KILL))


@pytest.mark.parametrize(
    ("victim", "how", "more"),
    [
        ("metaserver", How.KILL, set()),
        ("tier-a", How.RESTART, set()),
        ("vllm-d", How.STOP, set()),
        ("vllm-p", How.KILL, {Seen.REFUSED}),
        ("vllm-d", How.KILL, {Seen.REFUSED, Seen.BROKEN}),
        ("router", How.RESTART, {Seen.REFUSED, Seen.NO_ANSWER}),
    ],
)
def test_what_those_beside_it_may_see(victim: str, how: How, more: set[Seen]) -> None:
    assert allowed_beside(Scenario(Phase.FETCHING, victim, how)) == {Seen.RIGHT, Seen.LEFT} | more


TIER = Scenario(Phase.FETCHING, "tier-a", How.KILL)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), found=True), []),
        (Result(TIER, Outcome("x", Seen.REFUSED, "503"), found=True), ["the client saw: refused 503"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), Counter({Seen.WRONG: 2}), found=True), ["2 wrong beside it"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), Counter({Seen.REFUSED: 1}), found=True), ["1 refused beside it"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), Counter({Seen.RIGHT: 5, Seen.LEFT: 1}), found=True), []),
        (Result(TIER, Outcome("x", Seen.RIGHT, "")), ["an earlier prefix was not found again"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), found=True, left={"leases": 1}), ["left over: {'leases': 1}"]),
        (Result(TIER, failure="not_reached: …"), ["not_reached: …"]),
        (Result(TIER, missed="missed: …"), []),
        (Result(TIER, missed="missed: …", left={"leases": 1}), ["left over: {'leases': 1}"]),
        (Result(TIER), ["not run"]),
    ],
)
def test_faults(result: Result, words: list[str]) -> None:
    assert result.faults() == words
    [row] = matrix([result])
    assert row["fetching"].startswith("FAILED") == bool(words) and row["victim"] == "tier-a" and row["decoding"] == ""


GOOD = Outcome("x", Seen.RIGHT, "")
DEAD = Scenario(Phase.DECODING, "vllm-d", How.KILL)


@pytest.mark.parametrize(
    ("result", "verdict", "words"),
    [
        (Result(TIER, GOOD, found=True, whole=1.26), Verdict.GOOD, "right 1.3"),
        (Result(TIER, GOOD, found=True, whole=5.01), Verdict.SLOW, "slow: right 5.0"),
        (Result(TIER, missed="missed: …"), Verdict.MISSED, "missed"),
        (Result(TIER, GOOD, whole=7.0), Verdict.FAILED, "FAILED: right 7.0"),
        (Result(TIER, failure="error: …"), Verdict.FAILED, "FAILED: - 0.0"),
    ],
)
def test_verdicts(result: Result, verdict: Verdict, words: str) -> None:
    assert result.verdict is verdict and result.words() == words
    assert result.row()["verdict"].startswith(verdict)


def test_what_was_missed_is_no_fault_and_no_success() -> None:
    results = [Result(TIER, GOOD, found=True, whole=6.0), Result(TIER, missed="missed: …"), Result(TIER)]
    assert total(results) == Total(wrong=0, failed=1, missed=1, slow=1, slowest=6.0)


def test_every_wrong_answer_counts() -> None:
    wrong = Outcome("x", Seen.WRONG, "[1] instead of [2]")
    results = [Result(TIER, wrong, Counter({Seen.WRONG: 2}), found=True), Result(TIER, failure="wrong_answer: …")]
    assert total(results).wrong == 4
    assert all(result.verdict is Verdict.FAILED for result in results)


def test_the_picture_has_a_cell_for_each_result() -> None:
    broken = Outcome("x", Seen.BROKEN, "")
    text = picture([Result(TIER, GOOD, found=True, whole=9.0), Result(DEAD, broken, found=True, whole=2.0)])
    assert ">kill tier-a<" in text and ">kill vllm-d<" in text and ">9.0 s<" in text and ">broken<" in text
    assert text.count(COLOURS[Verdict.SLOW]) == 2 and text.count(COLOURS[Verdict.FAILED]) == 1  # one of each is the legend's


@pytest.mark.parametrize(
    ("status", "body", "seen"),
    [
        (0, "refused", Seen.NO_ANSWER),
        (502, {"error": {"message": "m", "type": "server_error", "code": "pd_decode_failed"}}, Seen.REFUSED),
        (429, {"error": {"message": "m", "type": "rate_limit", "code": "rate_limit_exceeded"}}, Seen.REFUSED),
        (500, {"error": {"message": "m", "type": "server_error"}}, Seen.UNCLEAN),
        (500, "Traceback (most recent call last)", Seen.UNCLEAN),
        (503, [], Seen.UNCLEAN),
        (404, {"error": {"message": "m", "type": "invalid_request_error", "code": "not_found"}}, Seen.UNCLEAN),
    ],
)
def test_an_error_is_clean_if_it_has_openais_shape_and_blames_nobody(status: int, body: object, seen: Seen) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    assert refusal(HttpFailure("x", status, text)) is seen
    assert Seen.UNCLEAN not in set().union(*(allowed_beside(one) for one in ALL))


def test_a_service_that_is_back_late_is_slow_and_an_engine_is_not() -> None:
    assert Result(TIER, GOOD, found=True, back=11.0).verdict is Verdict.SLOW
    assert Result(Scenario(Phase.QUEUED, "vllm-p", How.STOP), GOOD, found=True, back=60.0).verdict is Verdict.GOOD


NOBODY = Expected(Case("x", "/v1/completions", {}), Answer((), (1,), "x", "length", None))


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_beside_each_scenario_somebody_streams_and_somebody_goes_away(scenario: Scenario) -> None:
    asked = beside(Server(1), [NOBODY] * 11, scenario).requests
    assert {Kind.PIECE, Kind.STREAM, Kind.LEAVER} == {request.kind for request in asked}
    assert len(asked) == REQUESTS and asked == beside(Server(1), [NOBODY] * 11, scenario).requests


def test_not_the_same_is_asked_beside_each_scenario() -> None:
    asked = Counter(beside(Server(1), [NOBODY] * 11, scenario).requests for scenario in (None, *ALL))
    assert len(asked) > len(ALL) * 0.9
