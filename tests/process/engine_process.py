"""An engine without a model, in a process of its own: both halves' buses, the rank's copy threads, and blocks of bytes.

    python engine_process.py NAME ENDPOINT RUNTIME_DIR        one JSON line in, one JSON line out

What a page holds follows from its key, so that every byte that comes back can be judged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pegaflow.common import clock, faults
from pegaflow.common.pages import PageLayout
from pegaflow.connector.bus import RankBus, SchedulerBus
from pegaflow.connector.copier import Copier
from pegaflow.connector.counters import Counters
from pegaflow.connector.load_tracker import Load
from pegaflow.connector.session import LookupAnswer, Member, TierOptions
from pegaflow.connector.work import SaveOrder, SaveWork, StepWork
from pegaflow.connector.worker import Collected, RankHalf

FINGERPRINT, BASE = b"f" * 16, b"b" * 16
LAYOUT = PageLayout.of(16, [("layer", 48 << 10, "bytes")])
PATIENCE_S = 2.0
"""On top of a lookup's wait, as in the connector's scheduler half."""


def keys_of(topic: str, count: int) -> list[bytes]:
    return [FINGERPRINT + hashlib.sha256(f"{topic} {i}".encode()).digest() for i in range(count)]


def page_of(key: bytes) -> bytes:
    return (key * (LAYOUT.page_bytes // len(key) + 1))[: LAYOUT.page_bytes]


class Blocks(Copier):
    """Blocks of bytes in this process's memory."""

    layout = LAYOUT

    def __init__(self) -> None:
        self.bytes: dict[int, bytes] = {}
        self.broken = False

    def mark(self) -> object:
        return None

    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        if self.broken:
            raise RuntimeError("broken on purpose")
        for block, offset in zip(blocks, offsets, strict=True):
            memory[offset : offset + LAYOUT.page_bytes] = self.bytes[block]

    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        for block, offset in zip(blocks, offsets, strict=True):
            self.bytes[block] = bytes(memory[offset : offset + LAYOUT.page_bytes])


class Engine:
    """Each method is one command; what it returns is the answer."""

    def __init__(self, name: str, endpoint: str, runtime: Path) -> None:
        options = TierOptions(endpoint, runtime, "read_write", 2.0, 5.0)
        member = Member(name, "scheduler", 0, 0, 1, 0, 1)
        self.scheduler = SchedulerBus(
            options, member, BASE, FINGERPRINT, {}, [LAYOUT.digest], [LAYOUT.page_bytes], clock=clock.now
        )
        member = member._replace(role="rank")
        self.bus = RankBus(options, member, BASE, LAYOUT.digest, LAYOUT.page_bytes, clock=clock.now)
        self.blocks = Blocks()
        self.counters = Counters()
        self.rank = RankHalf(self.blocks, self.bus, member, clock.now, self.counters, logging.getLogger("engine"))
        self._number = 0

    def save(self, topic: str, count: int, broken: bool = False) -> dict[str, Any]:
        """One step that makes `count` blocks saveable; ends when the rank has reported the save ended."""
        keys = keys_of(topic, count)
        ref = self.scheduler.publish_intent(keys, [16] * count, [0] * count, [topic] * count, 0)
        if ref is None:
            return {"outcome": "not_published"}
        self._number += 1
        blocks = tuple(range(count))
        self.blocks.bytes = dict(zip(blocks, map(page_of, keys), strict=True))
        self.blocks.broken = broken
        self.counters.take()
        self.rank.start_saves(SaveWork(ref, (SaveOrder(self._number, 0, blocks, False),)))
        self._collected(lambda got: self._number in got.report.ended)
        (outcome,) = [name.partition("|")[2] for name in self.counters.take() if name.startswith("saves|")]
        return {"outcome": outcome}

    def load(self, topic: str, count: int, wait: float, expected: bool = True) -> dict[str, Any]:
        """A lookup, and a load of what it finds. `right`: loaded pages with the bytes of their keys; `wrong`: with others."""
        keys = keys_of(topic, count)
        self._number += 1
        number = self._number
        if not self.scheduler.lookup(number, "r", keys, [], wait, expected):
            return {"code": "no_tier", "right": 0, "wrong": 0}
        answer = self._answer(number, wait)
        if answer is None:
            self.scheduler.cancel(number)
            return {"code": "lookup_timeout", "right": 0, "wrong": 0}
        if answer.lease is None:
            return {"code": answer.code, "right": 0, "wrong": 0}
        blocks = tuple(range(answer.full))
        self.blocks.bytes = {}
        self.scheduler.loading(answer.lease)
        load = Load(f"r{number}", blocks, answer.lease, answer.slots, answer.generations, False, "")
        self.rank.start_loads(StepWork(number, loads=(load,)))
        got = self._collected(lambda got: load.request_id in got.received)
        self.scheduler.release(answer.lease)
        pages = [self.blocks.bytes.get(block) == page_of(keys[block]) for block in blocks if block not in got.bad_blocks]
        code = got.report.failed.get(load.request_id, answer.code)
        return {"code": code, "right": sum(pages), "wrong": len(pages) - sum(pages), "remote": answer.sources.count(1)}

    def cancel(self, topic: str) -> dict[str, Any]:
        """A lookup for what nobody has, which is not wanted any more once it waits at the tier."""
        self._number += 1
        if self.scheduler.lookup(self._number, "r", keys_of(topic, 1), [], 30.0, True):
            time.sleep(0.05)  # not a condition: cancelled before or after it has come, both are right
            self.scheduler.cancel(self._number)
        return {}

    def held(self) -> dict[str, int]:
        """What this process still owes or waits for; {} when it is attached and idle."""
        scheduler, rank = self.scheduler, self.bus
        found = {
            "unattached": int(scheduler.session() is None or rank.session() != scheduler.session()),
            "lookups": len(scheduler._lookups),
            "leases": len(scheduler._leases),
            "owed": len(rank._owed),
        }
        return {name: count for name, count in found.items() if count}

    def close(self) -> dict[str, Any]:
        self.rank.close()
        self.scheduler.close()
        return {}

    def _answer(self, number: int, wait: float) -> LookupAnswer | None:
        end = time.monotonic() + wait + PATIENCE_S
        while time.monotonic() < end:
            for answer in self.scheduler.drain():
                if answer.lookup == number:
                    return answer
                if answer.lease is not None:  # of a lookup that was given up
                    self.scheduler.release(answer.lease)
            time.sleep(0.002)
        return None

    def _collected(self, there: Callable[[Collected], bool]) -> Collected:
        while True:
            got = self.rank.collect()
            if there(got):
                return got
            time.sleep(0.002)


def main() -> None:
    faults.arm(os.environ)
    name, endpoint, runtime = sys.argv[1:]
    engine = Engine(name, endpoint, Path(runtime))
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(engine, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
