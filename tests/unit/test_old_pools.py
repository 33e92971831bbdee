"""A pool without a name that somebody still maps: who that is, and what the next life says and does about it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pegaflow.common import pool as pools
from pegaflow.common.lifecycle import Lifecycle
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.services.tier import old_pools, pool_life
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.pool_life import PoolLife

HOLDER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapping = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
sys.stdin.read()
"""
SMALL, LARGE = 8 << 20, 16 << 20


class Holder:
    """A process that maps a pool until it is told to let go."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == "mapped\n"

    def let_go(self) -> None:
        self.process.communicate()


def life(folder: Path, size: int) -> PoolLife:
    config = TierConfig(node="a", runtime_dir=folder / "run", pool_dir=folder / "pool", pool_size=size)
    return PoolLife(config, Lifecycle("tier"), lambda event: None)


async def opened(folder: Path, size: int) -> PoolLife:
    made = life(folder, size)
    await made.open(1)
    return made


@pytest.fixture
def holder(tmp_path: Path) -> Holder:
    async def first() -> Path:
        made = await opened(tmp_path, SMALL)
        made.pool.allocate()
        made.close()
        return made.pool.path

    return Holder(asyncio.run(first()))


def test_a_pool_that_does_not_fit_names_who_still_maps_an_earlier_one(tmp_path: Path, holder: Holder) -> None:
    directory = tmp_path / "pool" / "a"
    assert old_pools.still_mapped(directory) == [], "it has its name, and will be taken over"
    with pytest.raises(LocalError) as refused:
        asyncio.run(opened(tmp_path, 1 << 60))
    (held,) = old_pools.still_mapped(directory)
    assert [pid for pid, _ in held.holders] == [holder.process.pid] and SMALL <= held.size < SMALL + (1 << 20)
    text = refused.value.text
    assert refused.value.code == ErrorCode.POOL_TOO_LARGE and "MiB available" in text
    assert f"{SMALL >> 20} MiB are {held.name}" in text and f"(pid {holder.process.pid})" in text and "end those" in text
    holder.let_go()
    assert old_pools.still_mapped(directory) == []


def test_a_start_waits_for_those_who_are_about_to_let_go(tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is just short is not to be had in a test: here it is short while the earlier pool is mapped."""
    directory = tmp_path / "pool" / "a"
    looked: list[int] = []

    def room(directory: Path) -> tuple[int, int]:
        held = sum(one.size for one in old_pools.still_mapped(directory))
        looked.append(held)
        return LARGE - held, LARGE

    async def both() -> PoolLife:
        opening = asyncio.ensure_future(opened(tmp_path, LARGE))
        while not looked or not looked[-1]:
            await asyncio.sleep(0.01)
        assert not opening.done()
        await asyncio.to_thread(holder.let_go)
        return await opening

    monkeypatch.setattr(pools, "room", room)
    monkeypatch.setattr(pool_life, "room", room)
    made = asyncio.run(both())
    assert made.pool.size == LARGE and not made.pool.adopted and not old_pools.still_mapped(directory)
    made.close()


def test_it_does_not_wait_for_ever(tmp_path: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "room", lambda directory: (SMALL, SMALL))
    monkeypatch.setattr(pool_life, "room", lambda directory: (SMALL, SMALL))
    monkeypatch.setattr(pool_life, "LET_GO_S", 0.1)
    with pytest.raises(LocalError, match="still mapped"):
        asyncio.run(opened(tmp_path, LARGE))
    holder.let_go()
