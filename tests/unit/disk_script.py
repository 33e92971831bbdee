"""A tier with a disk level as a script: events in, commands out, and a disk that does what it is told."""

from __future__ import annotations

import itertools
from typing import Any

from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.catalogue import Delta
from pegaflow.common.wire.messages.loads import Hits, Release
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.disk.level import DiskOptions
from pegaflow.services.tier.eviction.shares import SpaceOptions
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState
from tier_script import EPOCH, Script

CAPACITY = 64 * GRANULE


class DiskScript(Script):
    """A tier of 16 one-granule pages with a disk; what leaves memory does so at ticks, above 12 pages, down to 8."""

    def __init__(self, capacity: int = CAPACITY, queue: int = 1 << 20, floor: int = 0, metaserver: bool = False) -> None:
        self.heard: dict[bytes, tuple[int, int]] = {}
        self.pending: list[Any] = []
        self.asked: list[commands.Command] = []
        super().__init__(16, metaserver=metaserver)
        numbers = itertools.count(1)
        self.tier = TierState(
            Place("a", EPOCH, "pool", 16 * GRANULE, "table", "i", "e", "c"),
            lambda n: next(numbers).to_bytes(n, "little"),
            session_topic,
            metaserver=metaserver,
            space=SpaceOptions("lru", {}, 1.0, 0.75, 0.5, 0.25),
            disk=DiskOptions(capacity, queue, floor),
        )
        self.tier.agent = Agent("a/77", b"blob", 4096)
        self.feed(events.Backed(16))
        self.engine()

    def feed(self, event: events.Event) -> list[commands.Command]:
        out = super().feed(event)
        self.asked += out
        self.pending += [one for one in out if isinstance(one, commands.DiskWrite | commands.DiskRead)]
        for one in out:
            if isinstance(one, commands.Publish) and isinstance(one.message, Delta):
                delta = one.message
                for name, state, level in zip(delta.keys, delta.states, delta.levels, strict=True):
                    self.heard[name] = (state, level)
        return out

    def tick(self, seconds: float = 0.02) -> list[commands.Command]:
        self.now += seconds
        return self.feed(events.Tick())

    def settle(self, code: str = "") -> int:
        """Lets the disk do what it was asked for, until nothing more comes; returns how many pages it wrote."""
        wrote = 0
        self.tick()
        while self.pending:
            job = self.pending.pop(0)
            if isinstance(job, commands.DiskWrite):
                wrote += len(job.records)
                self.feed(events.DiskWritten(job.job, code))
            else:
                self.feed(events.DiskReadEnded(job.job, code or [record.checksums for record in job.records]))
            self.tick()
        return wrote

    def fill(self, numbers: range) -> None:
        """Saves pages, each of its own request, and lets those that leave go to disk."""
        for number in numbers:
            self.save([number], request=f"r{number}")
            self.settle()

    def release(self, answer: Hits) -> None:
        session = self.members["p", "scheduler", 0]
        self.ask(Release(session.session, session.token, u32s([answer.lease])))

    def on_disk(self) -> set[int]:
        return {int.from_bytes(name[16:20], "big") for name in self.tier.disk.index.records}

    def quiet(self) -> bool:
        """Nothing is held by anybody."""
        dump = self.tier.dump()
        return dump["references"] == 0 and dump["disk"]["reading"] == dump["disk"]["writing"] == 0 and not dump["aside"]


def answers(out: list[commands.Command], kind: type[Any]) -> list[Any]:
    return [one.message for one in out if isinstance(one, commands.Reply) and isinstance(one.message, kind)]
