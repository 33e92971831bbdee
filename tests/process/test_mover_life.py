"""Movers come and go: retired, killed, orphaned, hung. Nothing lands afterwards, no READ is lost, no process is left."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from mover_node import PAGE, PATIENCE_S, QUICK, SMALL, TCP, TRANSPORTS, alive, cpu_s, run, started, stop_process, until
from pegaflow.services.tier.mover.pool import MoverFailed, MoverPool


@run
async def test_recycle_reaps_what_was_given_up_and_then_nothing_lands() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        owner.fill(1)
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        stopped, retired = owner.pid, reader.pid
        await stop_process(stopped)
        try:
            reader.memory[:] = bytes(SMALL)
            reader.read_all(2, owner)
            await reader.posted(owner)
            reader.pool.give_up(2)
            reader.pool.recycle()
            assert await reader.outcome(2) == "reaped"
            assert not alive(retired)
            assert len(reader.announced) == 2
            assert reader.announced[0] != reader.announced[1] == reader.pool.metadata
        finally:
            os.kill(stopped, signal.SIGCONT)
        # UCX may abort an owner that resumes with READs of a dead reader queued; its pool then starts another one.
        await asyncio.sleep(0.3)
        assert reader.memory[:] == bytes(SMALL)


@pytest.mark.parametrize("ucx", TRANSPORTS)
@run
async def test_a_recycle_under_load_loses_no_read(ucx: dict[str, str]) -> None:
    # The grace must exceed what a READ takes, as a pin's lease does in a tier; here that can be long on a busy machine.
    async with started("a", "b", ucx=ucx, limits=replace(QUICK, retire_grace_s=2.0, retire_limit_s=6.0)) as (owner, reader):
        owner.fill(1)
        owner.pool.recycle()
        reader.pool.recycle()
        job = 0
        while len(reader.announced) < 2 or len(owner.announced) < 2 or reader.pool.counts()["movers"] > 1:
            job += 1
            reader.read(job, owner, [0], [PAGE], [PAGE])
            assert await reader.outcome(job) == "done"
        assert reader.memory[:PAGE] == owner.memory[PAGE : 2 * PAGE]


@run
async def test_quarantine_above_its_share_of_the_pool_costs_the_mover_at_once() -> None:
    limits = replace(QUICK, quarantine_share=1 / 8)
    async with started("a", "b", ucx=TCP, limits=limits) as (owner, reader):
        await reader.meets(owner)
        stopped = owner.pid
        await stop_process(stopped)
        try:
            pages = [*range(0, SMALL, PAGE)]
            few = len(pages) // 8
            reader.read(1, owner, pages[:few], pages[:few], [PAGE] * few)
            reader.read(2, owner, pages[few:], pages[few:], [PAGE] * (len(pages) - few))
            await reader.posted(owner)
            reader.pool.give_up(1)
            counts = reader.pool.counts()
            assert (counts["quarantined_bytes"], counts["spawned"]) == (SMALL // 8, 1), "an eighth is allowed"
            reader.pool.give_up(2)
            counts = reader.pool.counts()
            assert (counts["quarantined_bytes"], counts["spawned"]) == (SMALL, 2)
            assert sorted([await reader.ended(), await reader.ended()]) == [
                (job, "reaped", "the mover that had posted it is gone") for job in (1, 2)
            ]
            counts = reader.pool.counts()
            assert (counts["quarantined_bytes"], counts["movers"], counts["spawned"]) == (0, 1, 2)
        finally:
            os.kill(stopped, signal.SIGCONT)
        await reader.served_by(owner)
        assert reader.memory[PAGE:] == bytes(SMALL - PAGE)


@run
async def test_a_hung_mover_is_replaced_although_nobody_reads_with_it() -> None:
    watched = started("a", ucx=TCP, limits=replace(QUICK, hung_after_s=1.0))
    async with watched as (owner,), started("b", ucx=TCP) as (reader,):
        owner.fill(1)
        await reader.meets(owner)
        hung, old = owner.pid, owner.pool.metadata
        await stop_process(hung)
        await until(lambda: owner.pool.ready and owner.pool.metadata != old)
        assert not alive(hung)
        await reader.served_by(owner)
        assert reader.memory[:PAGE] == owner.memory[:PAGE]
        counts = owner.pool.counts()  # a second without CPU is a hung mover too
        assert counts["hung"] >= 1 and counts["spawned"] >= 2


@run
async def test_a_stopped_owner_costs_no_core() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        reader.read(1, owner, [0], [0], [PAGE])
        assert await reader.outcome(1) == "done"
        await stop_process(owner.pid)
        for job in range(2, 8):
            reader.read_all(job, owner)
        await reader.posted(owner)
        before = cpu_s(reader.pid)
        await asyncio.sleep(1.0)
        assert cpu_s(reader.pid) - before < 0.4
        os.kill(owner.pid, signal.SIGCONT)
        assert {(await reader.ended())[1] for _ in range(2, 8)} == {"done"}


@run
async def test_stop_leaves_no_process_and_no_lock() -> None:
    async with started("a", "b", ucx=TCP) as (owner, reader):
        await stop_process(owner.pid)
        reader.read_all(1, owner)
        pids = [owner.pid, reader.pid]
        locks = [*(owner.directory / "mover").iterdir(), *(reader.directory / "mover").iterdir()]
        assert len(locks) == 2
        await asyncio.gather(owner.pool.stop(), reader.pool.stop())
        assert await reader.outcome(1) == "mover_died"
        assert [alive(pid) for pid in pids] == [False, False]
        assert not any(lock.exists() for lock in locks)


@run
async def test_an_unusable_pool_is_a_typed_failure() -> None:
    directory = Path(tempfile.mkdtemp(prefix="pegaflow-test-mover-", dir="/dev/shm"))
    try:
        (directory / "pool").write_bytes(bytes(4096))
        pool = MoverPool(*(directory, "a", directory / "pool", 8192), on_done=print, on_metadata=print, ucx={"UCX_TLS": "tcp"})
        with pytest.raises(MoverFailed, match="pool_unusable"):
            await pool.start()
        assert pool.counts()["movers"] == 0
        assert list((directory / "mover").iterdir()) == []
    finally:
        shutil.rmtree(directory)


_ORPHANER = """
import asyncio, sys
from pathlib import Path
from pegaflow.services.tier.mover.pool import MoverPool

async def main():
    where = Path(sys.argv[1])
    pool = MoverPool(where, "a", where / "pool", 1 << 20, on_done=print, on_metadata=print, ucx={"UCX_TLS": "tcp"})
    await pool.start()
    print("pid", pool.pids()[0], flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_mover_dies_with_its_parent(stopped: bool) -> None:
    directory = Path(tempfile.mkdtemp(prefix="pegaflow-test-mover-", dir="/dev/shm"))
    try:
        (directory / "pool").write_bytes(bytes(1 << 20))
        with subprocess.Popen([sys.executable, "-c", _ORPHANER, str(directory)], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            pid = next(int(line.split()[1]) for line in parent.stdout if line.startswith("pid "))
            pidfd = os.pidfd_open(pid)
            if stopped:
                # Not even able to see that its socket closed.
                os.kill(pid, signal.SIGSTOP)
            parent.kill()
        try:
            assert select.select([pidfd], [], [], PATIENCE_S)[0], "the mover outlived its parent"
        finally:
            os.close(pidfd)
        # Its lock is free, so the next tier may hand the pool out.
        asyncio.run(_start_and_stop(directory))
    finally:
        shutil.rmtree(directory)


async def _start_and_stop(directory: Path) -> None:
    pool = MoverPool(*(directory, "a", directory / "pool", 1 << 20), on_done=print, on_metadata=print, ucx={"UCX_TLS": "tcp"})
    await pool.start()
    assert len(list((directory / "mover").iterdir())) == 1
    await pool.stop()
