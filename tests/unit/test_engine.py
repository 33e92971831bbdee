"""Which process writes and loads what: shards, stripes and members for TP, PP and MLA."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from engine_descriptions import plain_engine
from pegaflow.connector.engine import Engine
from pegaflow.connector.fingerprint import base_factors, with_layouts
from pegaflow.connector.options import StartRefused
from pegaflow.connector.session import Member
from pegaflow.connector.work import RankLayout, layouts_by_shard

ENGINE = plain_engine()


def members(engine: Engine) -> list[Member]:
    return [engine.rank_member(tp_rank, pp_rank) for pp_rank in range(engine.pp) for tp_rank in range(engine.tp)]


@pytest.mark.parametrize("mla", [False, True])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (1, 2), (2, 2), (4, 3)])
def test_every_page_of_every_key_has_one_writer(tp: int, pp: int, mla: bool) -> None:
    engine = replace(ENGINE, tp=tp, pp=pp, mla=mla)
    ranks = members(engine)
    assert [member.rank for member in ranks] == list(range(tp * pp)), "each process has a number of its own"
    assert len(ranks) == engine.ranks
    for index in range(12):
        writers = Counter(member.shard for member in ranks if index % member.stripes == member.stripe)
        assert writers == dict.fromkeys(range(engine.shards), 1), f"block {index}"
    scheduler = engine.scheduler_member()
    assert {(member.shards, member.stripes) for member in [*ranks, scheduler]} == {(engine.shards, engine.stripes)}
    # What the scheduler half waits for before it publishes: itself and every rank.
    assert 1 + engine.shards * engine.stripes == 1 + engine.ranks


@pytest.mark.parametrize(
    ("mla", "shards"),
    [
        (False, {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3}),
        (True, {(0, 0): 0, (1, 0): 0, (0, 1): 1, (1, 1): 1}),
    ],
)
def test_shards_of_two_stages_with_two_ranks(mla: bool, shards: dict[tuple[int, int], int]) -> None:
    engine = replace(ENGINE, tp=2, pp=2, mla=mla)
    assert {place: engine.rank_member(*place).shard for place in shards} == shards
    assert {place: engine.rank_member(*place).stripe for place in shards} == {place: place[0] if mla else 0 for place in shards}


def test_stages_have_layouts_of_their_own() -> None:
    engine = replace(ENGINE, tp=2, pp=2, mla=True)
    # Stage 0 has more layers than stage 1; the two ranks of a stage must agree.
    first, second = RankLayout(0, b"0" * 16, 300), RankLayout(1, b"1" * 16, 200)
    found = [first, second, second, first]
    layouts = layouts_by_shard(found, engine.shards)
    assert [layout.page_bytes for layout in layouts] == [300, 200]
    with pytest.raises(StartRefused, match="layouts_differ"):
        layouts_by_shard([*found, RankLayout(1, b"1" * 16, 201)], engine.shards)
    with pytest.raises(StartRefused, match="layouts_missing"):
        layouts_by_shard(found[:1], engine.shards)


def test_whoever_cuts_the_model_otherwise_shares_nothing() -> None:
    engines = [
        ENGINE,
        replace(ENGINE, tp=2),
        replace(ENGINE, pp=2),
        replace(ENGINE, tp=2, mla=True),
        replace(ENGINE, tp=2, pp=2),
        replace(ENGINE, hash_block_size=8),
    ]
    factors = [with_layouts(base_factors(engine, b"n"), [b"l"] * engine.shards) for engine in engines]
    assert len({tuple(sorted(one.items())) for one in factors}) == len(factors)
    swapped = [with_layouts(factors[0], layouts) for layouts in ([b"a", b"b"], [b"b", b"a"])]
    assert swapped[0] != swapped[1]
