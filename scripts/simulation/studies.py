"""What is asked of the simulation: each study is a list of named setups, run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from pegaflow.services.router.policy import Policy

from simulation.cluster import Cluster, Setup

Row = dict[str, Any]
SHORT = 0.4
COARSE = 8
"""Grain of studies that compare: what it leaves out is left out of each case."""


class Case(NamedTuple):
    """One run. `what` stands in the first column."""

    what: str
    setup: Setup


def grain(nodes: int) -> int:
    """Pages that one simulated page stands for, so that a run takes minutes. Loads come out too low where it is not 1."""
    return 1 if nodes <= 32 else 4 if nodes <= 64 else 8 if nodes <= 128 else 16


def _at(base: Setup, nodes: int, **changes: Any) -> Setup:
    if nodes > 128:  # hit rates are not those of the end then, but loads and latencies are
        changes |= {"seconds": base.seconds * SHORT, "warm": base.warm * SHORT}
    return replace(base, nodes=nodes, grain=changes.pop("grain", grain(nodes)), **changes)


def scale(base: Setup, nodes: list[int]) -> Iterator[Case]:
    """One metaserver for ever more nodes."""
    for count in nodes:
        yield Case(f"{count} nodes", _at(base, count))


def replicas(base: Setup, nodes: list[int]) -> Iterator[Case]:
    """More metaservers, which every tier lists in the same order, or each in its own."""
    count = nodes[min(1, len(nodes) - 1)]
    for servers in (2, 4):
        for rotate in (False, True):
            name = f"{servers} metaservers, {'each tier its own order' if rotate else 'one order'}"
            yield Case(name, _at(base, count, metaservers=servers, rotate=rotate, grain=COARSE))


def recovery(base: Setup, nodes: list[int]) -> Iterator[Case]:
    """One of two metaservers dies and comes back with nothing."""
    for count in nodes[:2]:
        for pages in (8000, 32_000):
            more = pages + base.pool_pages
            setup = _at(base, count, metaservers=2, preload=pages, pool_pages=more, lose_at=0.5, grain=16)
            yield Case(f"{count} nodes, {pages} pages each before", setup)


def remedies(base: Setup, nodes: list[int]) -> Iterator[Case]:
    """What helps, one thing at a time."""
    count = nodes[min(1, len(nodes) - 1)]
    model, hardware = base.model, base.hardware
    yield Case("as it is", _at(base, count, grain=COARSE))
    yield Case(
        "pages of 256 tokens",
        _at(base, count, model=replace(model, block=256), pool_pages=base.pool_pages // 4, grain=COARSE // 4),
    )
    yield Case("one rank writes a step's pages", _at(base, count, model=replace(model, ranks=1), grain=COARSE))
    yield Case("four hasher threads", _at(base, count, hardware=replace(hardware, hash=4 * hardware.hash), grain=COARSE))
    yield Case("four network cards", _at(base, count, hardware=replace(hardware, nic=4 * hardware.nic), grain=COARSE))
    yield Case("cores twice as fast", _at(base, count, costs=replace(base.costs, speed=2.0), grain=COARSE))
    together = replace(
        base,
        model=replace(model, block=256, ranks=1),
        hardware=replace(hardware, hash=4 * hardware.hash),
        costs=replace(base.costs, speed=2.0),
        pool_pages=base.pool_pages // 4,
        metaservers=4,
        rotate=True,
    )
    yield Case("all but the cards, and 4 metaservers in turns", _at(together, count, grain=COARSE // 4))
    yield Case(f"the same, {4 * count} nodes", _at(together, 4 * count, grain=COARSE // 4))


def levels(base: Setup, nodes: list[int]) -> Iterator[Case]:
    """Where pages are found: smaller pools, a disk, a router that does not look. Give it time for second turns: 25 s."""
    count = nodes[0]
    small = base.pool_pages // 4
    yield Case("pool as it is", _at(base, count, grain=COARSE))
    yield Case("a quarter of the pool", _at(base, count, pool_pages=small, grain=COARSE))
    yield Case(
        "a quarter of the pool, and a disk", _at(base, count, pool_pages=small, disk_pages=4 * base.pool_pages, grain=COARSE)
    )
    yield Case("router: least loaded", _at(base, count, policy=Policy.LEAST_LOADED, grain=COARSE))


def grains(base: Setup, nodes: list[int]) -> Iterator[Case]:
    """What it does to the result that one simulated page stands for many."""
    for one in (1, 4, 8, 16):
        yield Case(f"{one} pages as one", _at(base, nodes[0], grain=one))


STUDIES: dict[str, Callable[[Setup, list[int]], Iterator[Case]]] = {
    "scale": scale,
    "replicas": replicas,
    "recovery": recovery,
    "remedies": remedies,
    "levels": levels,
    "grains": grains,
}


def run(study: str, base: Setup, nodes: list[int], done: Callable[[Row], None]) -> tuple[list[Row], list[Row]]:
    """A row per case, `done` with each; and of the first case what its metaserver's core spent its time on."""
    rows: list[Row] = []
    shares: list[Row] = []
    for what, setup in STUDIES[study](base, nodes):
        cluster = Cluster(setup)
        cluster.run()
        rows.append({"study": study, "what": what, **cluster.rows()})
        shares = shares or cluster.shares()
        done(rows[-1])
    return rows, shares
