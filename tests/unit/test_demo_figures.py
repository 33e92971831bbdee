"""What the demo reports."""

from __future__ import annotations

import json

from deployment.counters import Counters
from deployment.figures import Figures, Spread, spread


def counters(**values: float) -> Counters:
    return Counters(**{name: values.get(name, 0.0) for name in Counters._fields})


def test_percentiles_are_values_that_were_seen() -> None:
    assert spread([]) is None
    assert spread([0.002]) == Spread(2.0, 2.0)
    assert spread([i / 1000 for i in range(1, 101)]) == Spread(50.0, 99.0)


def test_one_failed_claim_breaks_the_proof() -> None:
    figures = Figures(metaserver_recovered=True, tier_restarted=True, tier_healed=True)
    assert figures.claim(True, "never said") and figures.holds
    assert not figures.claim(False, "two and two are five")
    assert not figures.holds
    document = json.loads(figures.to_json({"proof": 1.26}))
    assert document["failures"] == ["two and two are five"]
    assert (document["holds"], document["seconds"]) == (False, {"proof": 1.3})


def test_a_fault_that_was_not_survived_breaks_the_proof() -> None:
    assert not Figures(metaserver_recovered=True, tier_restarted=True).holds
    assert not Figures(metaserver_recovered=True, tier_healed=True).holds
    assert not Figures(tier_restarted=True, tier_healed=True).holds


def test_the_forwarded_token_is_no_prompt_position() -> None:
    assert counters(d_positions=12, d_last_positions=12).d_prompt_positions == 0
    assert counters(d_positions=45, d_last_positions=12).d_prompt_positions == 33


def test_a_replay_computes_a_position_of_the_prompt() -> None:
    assert counters(d_positions=12, d_last_positions=12, replays=2).d_prompt_positions == 2
