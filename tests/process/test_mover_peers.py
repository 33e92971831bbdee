"""One reader, several owners: what is wrong with one of them costs no other. Bounds on what a silent one can hold."""

from __future__ import annotations

import itertools
import os
import signal
import zlib
from array import array

import pytest
import uvloop
from mover_node import PAGE, SMALL, TCP, TRANSPORTS, run, started, stop_process, until
from pegaflow.services.tier.mover.jobs import MAX_PEER_JOBS
from pegaflow.services.tier.mover.process import MAX_LANES
from pegaflow.services.tier.mover.wire import Metadata


def lane_mates(count: int) -> list[str]:
    """Names of nodes that one lane serves: they have the least to themselves."""
    names = (f"n{number}" for number in itertools.count())
    return list(itertools.islice((name for name in names if zlib.crc32(f"{name}/1".encode()) % MAX_LANES == 0), count))


@pytest.mark.parametrize("ucx", TRANSPORTS)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "unconnected"])
def test_owner_killed_before_a_read(ucx: dict[str, str], connected: bool) -> None:
    async def script() -> None:
        async with started("a", "b", ucx=ucx) as (owner, reader):
            owner.fill(1)
            if connected:
                await reader.meets(owner)
            old = owner.metadata
            os.kill(owner.pid, signal.SIGKILL)
            reader.read_all(2, owner)
            assert await reader.outcome(2) in ("peer_lost", "peer_unreachable")
            # The owner's next mover has other metadata; with it the same peer is read again.
            await until(lambda: owner.pool.ready and owner.metadata != old)
            reader.read_all(3, owner)
            assert await reader.outcome(3) == "done"
            assert reader.holds_all_of(owner)

    uvloop.run(script())


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "unconnected"])
def test_a_stopped_owner_delays_nobody_in_its_lane(connected: bool) -> None:
    async def script() -> None:
        async with started(*lane_mates(2), "reader", ucx=TCP) as (owner, other, reader):
            owner.fill(1)
            other.fill(2)
            if connected:
                await reader.meets(owner)
                await reader.meets(other)
            await stop_process(owner.pid)
            try:
                half = SMALL // 2
                reader.read(1, owner, [0], [0], [half])
                reader.read(2, other, [half], [half], [half])
                assert await reader.outcome(2) == "done"
                assert reader.pool.holds(1)
                assert reader.memory[half:] == other.memory[half:]
            finally:
                os.kill(owner.pid, signal.SIGCONT)
            assert await reader.outcome(1) == "done"
            assert reader.memory[:half] == owner.memory[:half]

    uvloop.run(script())


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_a_dead_owner_delays_nobody_in_its_lane(ucx: dict[str, str]) -> None:
    async with started(*lane_mates(2), "reader", ucx=ucx) as (owner, other, reader):
        other.fill(2)
        await reader.meets(owner)
        metadata, base = owner.metadata, owner.base
        await owner.pool.stop()
        column = array("Q", [0])
        reader.pool.read(1, f"{owner.name}/1", metadata, base, SMALL, column, column, array("I", [PAGE]), b"n")
        reader.read_all(2, other)
        ended = dict([(await reader.ended())[:2], (await reader.ended())[:2]])
        assert ended[2] == "done"
        assert ended[1] in ("peer_lost", "peer_unreachable")
        assert reader.holds_all_of(other)
        assert reader.pool.counts()["spawned"] == 1


@run
async def test_a_silent_owner_holds_a_bounded_number_of_reads() -> None:
    async with started(*lane_mates(2), "reader", ucx=TCP) as (owner, other, reader):
        owner.fill(1)
        other.fill(2)
        await reader.meets(owner)
        await stop_process(owner.pid)
        try:
            asked = MAX_PEER_JOBS + 40
            for job in range(asked):
                reader.read(job, owner, [PAGE], [PAGE], [8])
            refused = [await reader.ended() for _ in range(40)]
            assert [(job, outcome) for job, outcome, _ in refused] == [(job, "busy_peer") for job in range(MAX_PEER_JOBS, asked)]
            assert reader.pool.counts()["open"] == MAX_PEER_JOBS
            # Everybody else goes on, in the same lane too.
            reader.read(asked, other, [0], [0], [PAGE])
            assert await reader.outcome(asked) == "done"
            assert reader.pool.counts()["open"] == MAX_PEER_JOBS
            for job in range(MAX_PEER_JOBS):
                reader.pool.give_up(job)
            reader.read(asked, owner, [0], [0], [PAGE])
            assert await reader.outcome(asked) == "busy_peer"
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        late = [await reader.ended() for _ in range(MAX_PEER_JOBS)]
        assert sorted(job for job, _, _ in late) == list(range(MAX_PEER_JOBS))
        assert {outcome for _, outcome, _ in late} <= {"landed_late", "failed_late"}
        await reader.served_by(owner)
        # One notification for each READ, and they were taken.
        assert await owner.pool.ping() <= MAX_PEER_JOBS + 2


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_a_peer_that_lies_about_its_pool_harms_itself_only(ucx: dict[str, str]) -> None:
    top = 1 << 64
    async with started("a", "b", "c", ucx=ucx) as (owner, reader, other):
        owner.fill(1)
        other.fill(2)
        await reader.meets(other)
        true = Metadata.unpack(owner.metadata)
        lies = [
            (-1, SMALL, 0, "peer_unreachable"),
            (true.base, -SMALL, 0, "peer_unreachable"),
            (true.base, 0, 0, "peer_unreachable"),
            (top - PAGE, SMALL, 0, "peer_unreachable"),
            # These are addresses, but not of its pool: NIXL finds that out.
            (true.base, 2 * SMALL, SMALL, "peer_unreachable"),
            (top - SMALL, SMALL, 0, "peer_unreachable"),
            (true.base - SMALL, SMALL, 0, "peer_unreachable"),
            (0, SMALL, 0, "peer_unreachable"),
        ]
        for job, (base, size, offset, outcome) in enumerate(lies):
            metadata = Metadata(true.agent, base, size, true.blob).pack()
            assert await reader.outcome_of(job, "a/1", metadata, base, size, offset) == outcome, (base, size)
        # Nor does somebody else's metadata pass for its own.
        assert await reader.outcome_of(90, "a/1", other.metadata, other.base) == "peer_unreachable"
        assert reader.memory[:] == bytes(SMALL)
        reader.read_all(91, other)
        assert await reader.outcome(91) == "done"
        assert reader.holds_all_of(other)
        reader.read_all(92, owner)
        assert await reader.outcome(92) == "done"
        assert [node.pool.counts()["spawned"] for node in (owner, reader, other)] == [1, 1, 1]


@run
async def test_a_new_life_of_a_peer_replaces_the_one_before() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        for epoch in range(1, 4):
            owner.fill(epoch)
            metadata = owner.metadata
            assert await reader.outcome_of(epoch, f"a/{epoch}", metadata, owner.base) == "done"
            assert reader.memory[:PAGE] == owner.memory[:PAGE]
            assert reader.pool.counts()["peers"] == 1
            os.kill(owner.pid, signal.SIGKILL)
            await until(lambda old=metadata: owner.pool.ready and owner.metadata != old)  # type: ignore[misc]
