"""The simulation: one seed gives one story, nothing is lost in it, and its answers move where they must."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from simulation.cluster import Cluster, Setup
from simulation.costs import Costs, Line
from simulation.figures import Load, Model
from simulation.measure import checksums, fitted
from simulation.metaserver import table_bytes
from simulation.pair import PAGE_BYTES, SIZES, SimPair, play
from simulation.settings import changed, check
from simulation.tally import percentile

SMALL = Setup(
    nodes=4,
    seconds=1.0,
    warm=0.2,
    pool_pages=400,
    model=Model(token_bytes=256, tpot=0.002, ranks=2),
    load=Load(utilisation=0.1, turns=3.0, user=400, output=90, system=256, think=0.02),
)


def ran(setup: Setup) -> Cluster:
    cluster = Cluster(setup)
    cluster.run()
    return cluster


def rows(setup: Setup) -> dict[str, Any]:
    found = ran(setup).rows()
    del found["wall s"]
    return {name: value for name, value in found.items() if value == value}  # nan is never equal


def test_one_seed_gives_one_story() -> None:
    assert rows(SMALL) == rows(SMALL)
    assert rows(SMALL) != rows(replace(SMALL, seed=2))


@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_every_request_ends_once_and_nothing_stays_held(lost: float) -> None:
    setup = replace(SMALL, seconds=0.7, drain=True, checks=True, metaservers=2, lose_at=lost, back_after=0.3, disk_pages=2000)
    cluster = ran(replace(setup, pool_pages=160))
    assert cluster.began == cluster.ended > 5
    assert cluster.idle and cluster.router.open == 0
    cluster.world.agenda.run(cluster.world.now + 10.0)  # pins and promises run out
    for tier in cluster.tiers.values():
        state = tier.state
        assert not state.leases.open and not state.saves.grants and not state.lookups.open and not state.fetches.open
    assert all(one.knows_all() for one in cluster.metaservers)
    if lost:
        assert 0.3 < cluster.recovery_s < 2.0


def test_the_metaservers_know_exactly_what_the_tiers_have() -> None:
    cluster = ran(replace(SMALL, drain=True))
    cluster.world.agenda.run(cluster.world.now + 2.0)
    nodes = cluster.metaservers[0].state.nodes.by_name
    assert {name: node.clone.sealed for name, node in nodes.items()} == {
        name: tier.state.pages.announced.sealed for name, tier in cluster.tiers.items()
    }


def test_what_is_slower_or_smaller_costs_more() -> None:
    # Pages as large as in truth, so that bytes count.
    base = replace(SMALL, model=replace(SMALL.model, token_bytes=53_940), load=replace(SMALL.load, utilisation=0.3))
    plain = rows(base)
    slow = rows(replace(base, hardware=replace(base.hardware, hash=base.hardware.hash / 20)))
    assert slow["handoff p50 ms"] > 1.5 * plain["handoff p50 ms"]
    small = rows(replace(base, pool_pages=40))
    assert small["computed"] > plain["computed"]
    fast = rows(replace(base, costs=replace(Costs(), speed=4.0)))
    assert fast["metaserver core"] < 0.5 * plain["metaserver core"]
    more = rows(replace(base, nodes=8))
    assert more["messages/s"] > 1.2 * plain["messages/s"]
    in_turns = rows(replace(base, metaservers=2, rotate=True))
    assert in_turns["messages/s"] < plain["messages/s"]


def test_a_coarser_grain_has_the_same_tokens_in_fewer_pages() -> None:
    fine, coarse = ran(SMALL), ran(replace(SMALL, grain=2))
    assert coarse.world.model.block == 2 * fine.world.model.block
    assert coarse.began == pytest.approx(fine.began, rel=0.3)
    assert coarse.tally.counts["deltas"] < fine.tally.counts["deltas"]
    assert coarse.metaservers[0].keys < 0.75 * fine.metaservers[0].keys


def test_the_script_of_the_validation_has_the_counts_that_it_must_have() -> None:
    rounds = 2
    played = play(SimPair(Costs(), 1e-4, 1e-3, 12e9), rounds, {"locate": 20, "save": 4}, restarts=2)
    calls, pages = rounds * len(SIZES), rounds * sum(SIZES)
    assert played.counts["metaserver"] == {"deltas": 3 * calls, "locates": calls}  # pending and sealed at a, sealed at b
    assert played.counts["tier b"]["fetched"] == played.counts["tier a"]["pinned"] == played.counts["tier a"]["sealed"] == pages
    assert all(len(played.remote[size]) == len(played.local[size]) == rounds for size in SIZES)
    assert max(played.local[128]) < min(played.remote[128])
    assert set(played.flood) == {"metaserver, locate of 64", "metaserver, two deltas of 64", "tier a, save of 64"}
    assert min(played.flood.values()) > 1e-5
    assert len(played.restarts) == 2 and all(0.0 < known < whole < 5.0 for known, whole in played.restarts)


def test_the_pair_verifies_what_it_fetches_at_the_rate_that_was_measured() -> None:
    fast, slow = (play(SimPair(Costs(), 1e-4, 1e-3, rate), 1, {"locate": 1, "save": 1}, restarts=0) for rate in (1e10, 1e8))
    more = PAGE_BYTES * 128 / 1e8
    assert slow.remote[128][0] - fast.remote[128][0] == pytest.approx(more, rel=0.2)
    assert checksums(PAGE_BYTES) > 1e8


def test_a_line_is_found_again_in_what_was_measured() -> None:
    line = fitted([(keys, 2e-5 + 1e-6 * keys) for keys in (1, 2, 5, 9, 70, 300) for _ in range(10)] + [(5, 1.0)])
    assert line.fixed == pytest.approx(2e-5, rel=0.2)
    assert line.each == pytest.approx(1e-6, rel=0.1)
    assert fitted([(0, 3e-5)] * 5) == Line(3e-5, 0.0)


def test_a_table_doubles_when_it_is_full() -> None:
    assert table_bytes(1) == 12 * 8192
    assert table_bytes(6553) == 12 * 8192
    assert table_bytes(6554) == 12 * 16384


def test_a_figure_is_changed_by_its_name() -> None:
    assert changed(Setup(), "nic=1e9").hardware.nic == 1e9
    assert changed(Setup(), "block=256").model.page_bytes == 256 * 53_940
    assert changed(Setup(), "pool_pages=7").pool_pages == 7
    for text in ("colour=7", "block=wide", "policy=prefix"):
        with pytest.raises(SystemExit, match="bad_setting"):
            changed(Setup(), text)


def test_a_study_that_is_not_there_is_named() -> None:
    with pytest.raises(SystemExit, match="unknown_study: scales is none of scale, "):
        check(["scales"])


def test_a_percentile_is_the_value_at_its_rank() -> None:
    values = [float(value) for value in range(10, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.1, 0.5, 0.51, 0.99, 1.0)] == [1.0, 1.0, 5.0, 6.0, 10.0, 10.0]
    assert math.isnan(percentile([], 0.5))
