"""What scripts/chaos plays, allows and says."""

from __future__ import annotations

from collections import Counter

import pytest

from deployment.supervision import SERVICES
from deployment.traffic import Outcome, Seen
from failures.result import Result, matrix
from failures.scenario import ALL, ENGINES, How, Phase, Scenario, allowed


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


TIER = Scenario(Phase.FETCHING, "tier-a", How.KILL)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), found=True), []),
        (Result(TIER, Outcome("x", Seen.REFUSED, "503"), found=True), ["the client saw: refused 503"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), Counter({Seen.WRONG: 2}), found=True), ["2 wrong answers beside it"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, "")), ["an earlier prefix was not found again"]),
        (Result(TIER, Outcome("x", Seen.RIGHT, ""), found=True, left={"leases": 1}), ["left over: {'leases': 1}"]),
        (Result(TIER, failure="not_reached: …"), ["not_reached: …"]),
        (Result(TIER), ["not run"]),
    ],
)
def test_faults(result: Result, words: list[str]) -> None:
    assert result.faults() == words
    [row] = matrix([result])
    assert row["fetching"].startswith("FAILED") == bool(words) and row["victim"] == "tier-a" and row["decoding"] == ""
