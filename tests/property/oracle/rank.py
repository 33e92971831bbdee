"""One rank: the connector's real half between a model of its bus and of its copier. Its lanes run when told to."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Generic, TypeVar
from unittest import mock

from pegaflow.common.pages import LayerLayout, PageLayout
from pegaflow.common.pool import GRANULE
from pegaflow.connector import worker
from pegaflow.connector.copier import Copier
from pegaflow.connector.counters import Counters
from pegaflow.connector.engine import Engine
from pegaflow.connector.load_tracker import Load
from pegaflow.connector.session import AttachState, Grant, IntentRef, Member, SessionId
from pegaflow.connector.work import SaveWork, StepWork
from pegaflow.connector.worker import CHUNK_BYTES, Collected, RankHalf

from oracle.block_pool import BlockPool
from oracle.memory import Memory
from oracle.prefixes import BLOCK, RUBBISH
from oracle.tier import Slot, Tier
from oracle.verdict import Verdict

Job = TypeVar("Job")

LAYOUT = PageLayout(BLOCK, (LayerLayout("layer", CHUNK_BYTES // 2, "stamps"),))
"""Two pages make a chunk, so that a copy of three can end in its middle."""


class Fate(StrEnum):
    """What happens to a copy."""

    DONE = "done"
    RAISES = "raises"
    REPLACED = "replaced"
    SESSION_OVER = "session_over"
    NO_GRANT = "no_grant"


class ScriptedLane(Generic[Job]):
    def __init__(self, name: str, handle: Callable[[Job], None], log: logging.Logger) -> None:
        self._handle = handle
        self.jobs: deque[Job] = deque()

    def put(self, job: Job) -> None:
        self.jobs.append(job)

    def run(self) -> Job:
        job = self.jobs.popleft()
        with suppress(Exception):  # the real lane logs it and goes on: what is owed then is missed at the end
            self._handle(job)
        return job

    def close(self) -> None:
        while self.jobs:
            self.run()


class View:
    """The pool, as one rank sees it."""

    memory = memoryview(b"")

    def __init__(self, tier: Tier) -> None:
        self._tier = tier

    def generation(self, slot: int) -> int:
        return self._tier.slots[slot].generation


class Bus:
    def __init__(self, tier: Tier, rank: int) -> None:
        self._tier = tier
        self._rank = rank
        self._view = View(tier)
        self.fate = Fate.DONE
        self.brackets = 0
        self.open = 0

    def wait_attached(self, timeout_s: float) -> AttachState:
        return AttachState.ATTACHED

    def session(self) -> SessionId | None:
        return self._tier.session()

    def pool(self) -> View:
        return self._view

    def take_grant(self, ref: IntentRef, deadline: float) -> Grant | None:
        grant = self._tier.grant(self._rank, ref)
        if grant is not None and self.fate is Fate.NO_GRANT:
            self._tier.ended(self._rank, grant, grant.positions, False)
            return None
        return grant

    def written(self, grant: Grant, positions: Sequence[int]) -> None:
        self._tier.ended(self._rank, grant, positions, True)

    def abandoned(self, grant: Grant, positions: Sequence[int]) -> None:
        self._tier.ended(self._rank, grant, positions, False)

    def begin_copy(self, session: SessionId) -> View | None:
        self.brackets += 1
        over = self.fate is Fate.SESSION_OVER and self.brackets > 1
        if over or session != self._tier.session():
            return None
        self.open += 1
        return self._view

    def end_copy(self) -> None:
        self.open -= 1

    def close(self) -> None:
        pass


class StampCopier(Copier):
    layout = LAYOUT

    def __init__(self, rank: int, shard: int, memory: Memory, tier: Tier, bus: Bus, pool: BlockPool, verdict: Verdict) -> None:
        self._rank = rank
        self._shard = shard
        self._memory = memory
        self._tier = tier
        self._bus = bus
        self._pool = pool
        self._verdict = verdict

    def mark(self) -> object:
        return None

    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        self._verdict.demand(self._bus.open == 1, "a page is written outside of a bracket")
        for block, offset in zip(blocks, offsets, strict=True):
            self._verdict.demand(self._pool.blocks[block].refs > 0, f"a save reads block {block}, which is free")
            slot = self._slot(offset)
            slot.rows = list(self._memory.rows[self._rank][block])
            if self._bus.fate is Fate.RAISES:
                raise OSError("the copy of a save failed")

    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        self._verdict.demand(self._bus.open == 1, "a page is read outside of a bracket")
        for block, offset in zip(blocks, offsets, strict=True):
            self._verdict.demand(block in self._memory.loading[self._rank], f"a load writes block {block}, which is not its own")
            rows = self._memory.rows[self._rank][block]
            slot = self._slot(offset)
            if self._bus.fate in (Fate.RAISES, Fate.REPLACED):
                rows[:] = [RUBBISH] * BLOCK
                if self._bus.fate is Fate.RAISES:
                    raise OSError("the copy of a load failed")
                self._tier.replace(offset // GRANULE)
            else:
                rows[: len(slot.rows)] = slot.rows

    def _slot(self, offset: int) -> Slot:
        slot = self._tier.slots[offset // GRANULE]
        self._verdict.demand(slot.shard == self._shard, f"rank {self._rank} copies a page of another shard")
        return slot


class Rank:
    """`load` and `save` run the oldest copy; nothing runs by itself."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        memory: Memory,
        tier: Tier,
        pool: BlockPool,
        verdict: Verdict,
        counters: Counters,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self.number = number
        self.bus = Bus(tier, number)
        self._pool = pool
        self._memory = memory
        pp, tp = divmod(number, engine.tp)
        shard, stripe = engine.shard(tp, pp), engine.stripe(tp)
        copier = StampCopier(number, shard, memory, tier, self.bus, pool, verdict)
        member = Member("e", "rank", number, shard, engine.shards, stripe, engine.stripes)
        with mock.patch.object(worker, "Lane", ScriptedLane):
            self._half = RankHalf(copier, self.bus, member, clock, counters, log)
        self._loads: ScriptedLane[Any] = self._lane("_load_lane")
        self._saves: ScriptedLane[Any] = self._lane("_save_lane")

    def _lane(self, name: str) -> ScriptedLane[Any]:
        lane = getattr(self._half, name)
        assert isinstance(lane, ScriptedLane)
        return lane

    def before_forward(self, work: StepWork) -> None:
        for load in work.loads:
            self._memory.loading[self.number].update(dict.fromkeys(load.blocks, load.request_id))
        # vLLM has two hooks before a forward pass, and either may be the only one.
        self._half.start_loads(work)
        self._half.start_loads(work)

    def after_forward(self, saves: SaveWork) -> None:
        self._half.start_saves(saves)

    def collect(self) -> Collected:
        collected = self._half.collect()
        if collected.received:
            own = self._memory.loading[self.number]
            for block in [block for block, request_id in own.items() if request_id in collected.received]:
                del own[block]
        return collected

    @property
    def loads(self) -> int:
        return len(self._loads.jobs)

    @property
    def saves(self) -> int:
        return len(self._saves.jobs)

    def load(self, fate: Fate) -> Load:
        self._fated(fate)
        load: Load = self._loads.run().load
        return load

    def save(self, fate: Fate) -> None:
        self._fated(fate)
        work: SaveWork = self._saves.run().work
        for order in work.saves:
            for block in order.blocks:
                self._pool.to_read[block] -= 1

    def _fated(self, fate: Fate) -> None:
        self.bus.fate = fate
        self.bus.brackets = 0
