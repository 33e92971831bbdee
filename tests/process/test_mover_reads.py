"""Real movers over real pools: exactly the asked bytes between processes, and no others."""

from __future__ import annotations

from array import array

import pytest
from mover_node import PAGE, SMALL, TRANSPORTS, run, started


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_exactly_the_asked_bytes_arrive(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        expected = bytearray(SMALL)
        # Two that touch on both sides, two that touch on one, odd lengths, an odd place, out of order.
        pages = [
            (1 << 20, 2 << 20, PAGE),
            ((1 << 20) + PAGE, (2 << 20) + PAGE, PAGE),
            (3 << 20, 5 << 20, 12_345),
            ((3 << 20) + 12_345, 0, 1),
            (SMALL - 77, SMALL - 77, 77),
            (0, 7 << 20, 1 << 20),
        ]
        for local, remote, length in pages:
            expected[local : local + length] = owner.memory[remote : remote + length]
        reader.read(1, owner, *(list(column) for column in zip(*pages, strict=True)))
        assert await reader.ended() == (1, "done", "")
        assert reader.memory[:] == expected
        counts = reader.pool.counts()
        assert (counts["open"], counts["given_up"], counts["ended_done"]) == (0, 0, 1)


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_many_reads_at_once_each_end_once(ucx: dict[str, str]) -> None:
    async with started("a", "b", "c", ucx=ucx) as (one, two, reader):
        one.fill(1)
        two.fill(2)
        expected = bytearray(SMALL)
        count = SMALL // PAGE
        for job in range(count):
            owner = (one, two)[job % 2]
            there = SMALL - PAGE - job * PAGE
            reader.read(job, owner, [job * PAGE], [there], [PAGE])
            expected[job * PAGE : (job + 1) * PAGE] = owner.memory[there : there + PAGE]
        ended = [await reader.ended() for _ in range(count)]
        assert sorted(ended) == [(job, "done", "") for job in range(count)]
        assert reader.memory[:] == expected
        # The owners' movers take the notifications, so they do not pile up.
        assert await one.pool.ping() + await two.pool.ping() >= count - 2


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_bad_descriptors_are_refused_before_anything_moves(ucx: dict[str, str]) -> None:
    top = (1 << 64) - 1
    bad = {
        "local end": ([SMALL - 1], [0], [2]),
        "remote end": ([0], [SMALL - 1], [2]),
        "local wraps": ([top], [0], [PAGE]),
        "remote wraps": ([0], [top], [PAGE]),
        "one of many": ([0, PAGE, 2 * PAGE], [0, SMALL, 0], [PAGE] * 3),
        "longer than a pool": ([0], [0], [(1 << 32) - 1]),
        "overlap": ([0, PAGE - 1], [0, PAGE], [PAGE, PAGE]),
        "no bytes": ([0], [0], [0]),
        "no pages": ([], [], []),
        "columns": ([0, PAGE], [0], [PAGE]),
    }
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        for job, columns in enumerate(bad.values()):
            reader.read(job, owner, *columns)
            assert await reader.outcome(job) == "bad_descriptor"
        offsets = array("Q", [0])
        reader.pool.read(90, "a/1", owner.pool.metadata, owner.pool.base + 4096, SMALL, offsets, offsets, array("I", [1]), b"")
        assert await reader.outcome(90) == "bad_descriptor"
        assert reader.memory[:] == bytes(SMALL)
        reader.read_all(99, owner)
        assert await reader.outcome(99) == "done"
        assert reader.holds_all_of(owner)
