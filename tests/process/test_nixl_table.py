"""What NIXL and UCX do when things go wrong, row by row, over `cma` and over TCP: what our movers make of each.

    owner stopped · READ given up, owner resumes · owner killed during a READ · owner deregistered · owner unmapped ·
    one bad page among many · reader dies while a stopped owner has its READs queued · reader exits with a READ pending ·
    truncated metadata of a known peer · peer restarted under the same agent name

In every row: a typed outcome, nothing lands after it was told, and whoever is not concerned is served as before.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from mover_node import LARGE, PAGE, QUICK, SMALL, TCP, TRANSPORTS, dead, run, started, stop_process, until
from pegaflow.services.tier.mover.wire import Metadata
from rogue_owner import RogueOwner, contents

PAGES = list(range(0, SMALL, PAGE))
both = pytest.mark.parametrize("ucx", TRANSPORTS)


@both
@run
async def test_owner_stopped(ucx: dict[str, str]) -> None:
    """No error and no end until it goes on. Over `cma` the bytes are there at once; the READ waits for its notification."""
    async with started("a", "b", "c", ucx=ucx) as (owner, reader, other):
        owner.fill(1)
        other.fill(3)
        await reader.meets(owner)
        await stop_process(owner.pid)
        try:
            reader.read(1, owner, PAGES[1:], PAGES[1:], [PAGE] * len(PAGES[1:]))
            await reader.posted(owner)
            # Others are served meanwhile.
            reader.read(2, other, [0], [0], [PAGE])
            assert await reader.outcome(2) == "done"
            assert reader.pool.holds(1)
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        assert await reader.outcome(1) == "done"
        assert reader.memory[:PAGE] == other.memory[:PAGE]
        assert reader.memory[PAGE:] == owner.memory[PAGE:]
        assert (owner.pool.counts()["spawned"], reader.pool.counts()["spawned"]) == (1, 1)


@both
@run
async def test_read_given_up_and_the_owner_resumes(ucx: dict[str, str]) -> None:
    async with started("a", "b", "c", ucx=ucx) as (owner, reader, other):
        owner.fill(1)
        other.fill(3)
        await reader.meets(owner)
        await stop_process(owner.pid)
        try:
            # All but the first page, which READ 4 gets.
            reader.read(2, owner, PAGES[1:], PAGES[1:], [PAGE] * len(PAGES[1:]))
            await reader.posted(owner)
            reader.pool.give_up(2)
            reader.read(3, owner, [0], [0], [PAGE])
            assert await reader.outcome(3) == "busy_peer"
            # The mover serves others meanwhile, and answers.
            reader.read(4, other, [0], [0], [PAGE])
            assert await reader.outcome(4) == "done"
            assert reader.memory[:PAGE] == other.memory[:PAGE]
            assert reader.memory[PAGE:] == (bytes(SMALL - PAGE) if ucx == TCP else owner.memory[PAGE:])
            await reader.pool.ping()
            await asyncio.sleep(0.5)
            assert reader.done.empty(), "told while the owner could still write"
            assert reader.pool.counts()["given_up"] == 1
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        assert await reader.outcome(2) == "landed_late"
        assert reader.memory[PAGE:] == owner.memory[PAGE:]
        assert reader.memory[:PAGE] == other.memory[:PAGE]
        assert reader.pool.counts()["given_up"] == 0
        reader.read(5, owner, [0], [0], [PAGE])
        assert await reader.outcome(5) == "done"


@both
@run
async def test_owner_killed_during_a_read(ucx: dict[str, str]) -> None:
    async with started("a", "b", size=LARGE, ucx=ucx) as (owner, reader):
        owner.fill(1)
        await reader.meets(owner)
        job, outcome = 1, "done"
        # On a machine that is busy the READ may end before the kill: then the owner's next mover is tried.
        while outcome == "done":
            job += 1
            assert job < 10, "no kill came in time"
            await until(lambda: owner.pool.ready)
            pid = owner.pid
            reader.memory[PAGE : PAGE + 8] = bytes(8)
            reader.read_all(job, owner)
            await until(lambda: reader.memory[PAGE : PAGE + 8] != bytes(8))
            os.kill(pid, signal.SIGKILL)
            outcome = await reader.outcome(job)
            await until(partial(dead, pid))
        assert outcome == "peer_lost"
        # Told means quiet: what is there now stays as it is.
        seen = reader.memory[:]
        await asyncio.sleep(0.3)
        assert reader.memory[:] == seen


@both
@run
async def test_owner_killed_while_it_stands_still_with_the_read_pending(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        await reader.meets(owner)
        pid = owner.pid
        await stop_process(pid)
        reader.read_all(2, owner)
        await reader.posted(owner)
        assert reader.done.empty()
        os.kill(pid, signal.SIGKILL)
        assert await reader.outcome(2) == "peer_lost"
        assert ucx != TCP or reader.memory[:] == bytes(SMALL)


@both
@run
async def test_owner_deregistered_the_region(ucx: dict[str, str]) -> None:
    """It revokes nothing, so `done` is no word of the owner: the reader's tier judges by lease and checksum (test_fetches)."""
    async with started("b", ucx=ucx) as (reader,):
        with RogueOwner(ucx, SMALL) as rogue:
            await reader.meets(rogue)
            rogue.do("deregister")
            rogue.do("fill", 2)
            reader.read(1, rogue, PAGES, PAGES, [PAGE] * len(PAGES))
            assert await reader.outcome(1) == "done"
            assert reader.memory[:] == contents(SMALL, 2)


@both
@run
async def test_owner_unmapped_the_region(ucx: dict[str, str]) -> None:
    async with started("b", "c", ucx=ucx) as (reader, other):
        other.fill(3)
        with RogueOwner(ucx, SMALL) as rogue:
            await reader.meets(rogue)
            rogue.do("unmap", 0, SMALL)
            reader.read(1, rogue, PAGES[1:], PAGES[1:], [PAGE] * len(PAGES[1:]))
            assert await reader.outcome(1) == "peer_lost"
            assert reader.memory[:] == bytes(SMALL)
            reader.read_all(2, other)
            assert await reader.outcome(2) == "done"
        assert reader.holds_all_of(other)
        assert reader.pool.counts()["spawned"] == 1


@both
@run
async def test_our_pools_stay_mapped_until_their_mover_is_gone(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx, limits=replace(QUICK, retire_grace_s=60.0, retire_limit_s=60.0)) as (owner, reader):
        owner.fill(1)
        await reader.meets(owner)
        old, base = owner.metadata, owner.base
        owner.pool.recycle()
        await until(lambda: owner.metadata != old)
        current, retired = owner.pool.pids()
        for pid in (current, retired):
            assert str(owner.directory / "pool") in Path(f"/proc/{pid}/maps").read_text()
        # Who was told of the retired one reads from it as before.
        assert await reader.outcome_of(1, "a/1", old, base) == "done"
        assert reader.memory[:PAGE] == owner.memory[:PAGE]


@both
@run
async def test_one_bad_page_among_many(ucx: dict[str, str]) -> None:
    """Never `done` with a page missing. Over TCP the owner crashes, over `cma` the READ fails."""
    async with started("b", "c", ucx=ucx) as (reader, other):
        other.fill(3)
        with RogueOwner(ucx, SMALL) as rogue:
            await reader.meets(rogue)
            rogue.do("unmap", 5 * PAGE, PAGE)
            reader.read(1, rogue, PAGES, PAGES[::-1], [PAGE] * len(PAGES))
            assert await reader.outcome(1) == "peer_lost"
            seen = reader.memory[:]
            reader.read(2, other, [0], [0], [PAGE])
            assert await reader.outcome(2) == "done"
            assert reader.memory[PAGE:] == seen[PAGE:]


@both
@run
async def test_reader_dies_while_a_stopped_owner_has_its_reads_queued(ucx: dict[str, str]) -> None:
    """UCX may abort an owner that resumes with READs of a dead reader queued: its pool then starts another one."""
    async with started("a", "b", "c", ucx=ucx) as (owner, reader, other):
        owner.fill(1)
        await reader.meets(owner)
        await stop_process(owner.pid)
        try:
            reader.read(2, owner, PAGES[1:], PAGES[1:], [PAGE] * len(PAGES[1:]))
            reader.read(3, owner, PAGES[1:], PAGES[1:], [PAGE] * len(PAGES[1:]))
            await reader.posted(owner)
            reader.pool.give_up(3)
            killed = reader.pid
            os.kill(killed, signal.SIGKILL)
            assert sorted([await reader.ended(), await reader.ended()]) == [
                (2, "mover_died", "the mover died with the READ open"),
                (3, "reaped", "the mover that had posted it is gone"),
            ]
            assert dead(killed)
            assert not reader.pool.ready
            reader.read_all(4, owner)
            assert await reader.outcome(4) == "mover_died"
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        await reader.served_by(owner)
        await other.served_by(owner)
        assert reader.memory[:PAGE] == other.memory[:PAGE] == owner.memory[:PAGE]
        assert reader.memory[PAGE:] == (bytes(SMALL - PAGE) if ucx == TCP else owner.memory[PAGE:])
        assert reader.pool.counts()["spawned"] == 2
        assert owner.pool.counts()["spawned"] <= (2 if ucx == TCP else 1)


@both
@run
async def test_reader_exits_with_a_read_pending(ucx: dict[str, str]) -> None:
    """A mover ends by SIGKILL only, even by itself: NIXL's destructors, which crash then, never run."""
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        await reader.meets(owner)
        await stop_process(owner.pid)
        try:
            reader.read(2, owner, PAGES[1:], PAGES[1:], [PAGE] * len(PAGES[1:]))
            await reader.posted(owner)
            (mover,) = reader.pool._numbers
            process = mover._process
            assert process is not None and mover._transport is not None
            mover._transport.write_eof()  # what it hears when its tier ends without a word
            assert await reader.outcome(2) == "mover_died"
            assert process.returncode == -signal.SIGKILL
            seen = reader.memory[PAGE:]
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        await reader.served_by(owner)
        assert reader.memory[PAGE:] == seen == (bytes(SMALL - PAGE) if ucx == TCP else owner.memory[PAGE:])


@both
@run
async def test_truncated_metadata_of_a_known_peer(ucx: dict[str, str]) -> None:
    async with started("a", "b", ucx=ucx) as (owner, reader):
        owner.fill(1)
        reader.read_all(1, owner)
        assert await reader.outcome(1) == "done"
        good = owner.metadata
        known = Metadata.unpack(good)
        flipped = bytearray(good)
        flipped[len(good) // 2] ^= 1
        wrapped = [b"", b"x", known.blob[: len(known.blob) // 2], random.Random(1).randbytes(400)]
        garbage = [
            *(b"", b"garbage", random.Random(2).randbytes(500), good[:-1], good + b"x", bytes(flipped)),
            *(Metadata(f"{node}:0", owner.base, SMALL, blob).pack() for blob in wrapped for node in ("a", "stranger")),
        ]
        for job, metadata in enumerate(garbage, 10):
            # Under a name of its own and under the name of a peer that works.
            for peer in ("stranger/1", "a/1"):
                assert await reader.outcome_of(job, peer, metadata, owner.base) == "peer_unreachable"
        reader.memory[:] = bytes(SMALL)
        reader.read_all(99, owner)
        assert await reader.outcome(99) == "done"
        assert reader.holds_all_of(owner)
        assert reader.pool.counts()["spawned"] == 1


@both
@run
async def test_peer_restarted_under_the_same_agent_name(ucx: dict[str, str]) -> None:
    """Our movers never do: each has a name of its own. A peer that does is read anew, never from its old region."""
    async with started("a", "b", ucx=ucx) as (node, reader):
        with RogueOwner(ucx, SMALL, seed=1) as rogue:
            reader.read(1, rogue, PAGES, PAGES, [PAGE] * len(PAGES))
            assert await reader.outcome(1) == "done"
            assert reader.memory[:] == contents(SMALL, 1)
        with RogueOwner(ucx, SMALL, seed=2) as rogue:
            reader.read(2, rogue, PAGES, PAGES, [PAGE] * len(PAGES))
            assert await reader.outcome(2) == "done"
            assert reader.memory[:] == contents(SMALL, 2)
        first = node.metadata
        os.kill(node.pid, signal.SIGKILL)
        await until(lambda: node.pool.ready and node.metadata != first)
        assert Metadata.unpack(first).agent != Metadata.unpack(node.metadata).agent
