"""How fast pages move: block → sealed page and page → block through a real tier, beside a plain copy of the same bytes.

    scripts/bench/datapath [--repeats 9] [--total 128MiB] [--json FILE]

save    the connector's copy code, `written`, checksum by the tier, until a lookup finds all pages sealed. Intent and grant are
        shown beside it: in vLLM they happen while the forward pass runs
store   the connector's copy code alone, into granted slots: `save` without words, checksum and sealing
hash    the checksum of the same bytes by the same function, alone: what sealing must cost at least
load    lookup, lease, the connector's copy code, generations checked before and after, release
copy    one `numpy.copyto` of the same bytes from one buffer into another, pages of the same size: what memory allows here
fetch   READs of the same sizes through two movers, beside two bare NIXL agents (nixl_pair.py)

Each round measures copy, save, copy, load, store and hash in turn; a ratio is taken within its round, the median of the ratios is
shown.

Exit codes: 0 all goals are met, 3 one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from pegaflow.common import clock
from pegaflow.common.pool import GRANULE
from pegaflow.common.quantity import size
from pegaflow.connector.copier import Copier
from pegaflow.connector.copy import make_copier
from pegaflow.connector.session import Grant
from pegaflow.connector.worker import CHUNK_BYTES
from report import Goal, at_least, ended, show
from stack import Engine, Stack, keys

SHAPES = {
    "smollm2 30x96KiB": (30, 96 << 10),
    "8b-like 32x64KiB": (32, 64 << 10),
}

FETCH_TRIES = 5


def caches(layers: int, segment: int, blocks: int) -> dict[str, torch.Tensor]:
    """A KV cache as vLLM's CPU build lays it out: one storage, layers far apart, one layer's block contiguous."""
    storage = torch.randint(0, 127, (layers * blocks * segment,), dtype=torch.int8)
    per_layer = blocks * segment
    return {
        f"layer.{i}": storage[i * per_layer : (i + 1) * per_layer].view(torch.bfloat16).view(blocks, 1, 32, segment // 64)
        for i in range(layers)
    }


class Round:
    """One engine, one set of blocks; each round uses fresh keys."""

    def __init__(self, engine: Engine, copier: Copier, blocks: int, page_bytes: int) -> None:
        self.engine, self.copier, self.blocks, self.page_bytes = engine, copier, blocks, page_bytes
        self.source = np.frombuffer(np.random.default_rng(1).bytes(blocks * page_bytes), np.uint8)
        self.target = np.zeros(blocks * page_bytes, np.uint8)

    def copy(self) -> None:
        for start in range(0, self.blocks * self.page_bytes, self.page_bytes):
            np.copyto(self.target[start : start + self.page_bytes], self.source[start : start + self.page_bytes])

    def grant(self, wanted: list[bytes]) -> Grant:
        scheduler, rank = self.engine.scheduler, self.engine.rank
        count = len(wanted)
        request = wanted[0].hex()  # a save never evicts pages of its own request
        ref = scheduler.publish_intent(wanted, [32] * count, [0] * count, [request] * count, 0)
        grant = rank.take_grant(ref, clock.now() + 10) if ref is not None else None
        if ref is None or grant is None or len(grant.positions) != count:
            raise SystemExit("the tier did not grant every page: the pool is too small for this run")
        return grant

    def save(self, wanted: list[bytes], grant: Grant) -> None:
        scheduler, rank = self.engine.scheduler, self.engine.rank
        count = len(wanted)
        chunk = max(1, CHUNK_BYTES // self.page_bytes)
        for first in range(0, count, chunk):
            positions = list(grant.positions[first : first + chunk])
            view = rank.begin_copy(grant.ref.session)
            if view is None:
                raise SystemExit("the session ended")
            offsets = [slot * GRANULE for slot in grant.slots[first : first + chunk]]
            self.copier.store(view.memory, positions, offsets, self.copier.mark())
            rank.end_copy()
            rank.written(grant, positions)
        answer = self.engine.lookup(wanted, expected=True)
        if answer.full != count or answer.lease is None:
            raise SystemExit(f"only {answer.full} of {count} pages were sealed: {answer.code}")
        scheduler.release(answer.lease)

    def store(self, grant: Grant) -> None:
        """Copies once more into slots that are this rank's until it says its last word; that comes with `abandon`."""
        view = self.engine.rank.begin_copy(grant.ref.session)
        if view is None:
            raise SystemExit("the session ended")
        self.copier.store(view.memory, list(grant.positions), [slot * GRANULE for slot in grant.slots], self.copier.mark())
        self.engine.rank.end_copy()

    def abandon(self, grant: Grant) -> None:
        self.engine.rank.abandoned(grant, list(grant.positions))

    def hash(self) -> None:
        memory = memoryview(self.source)
        for start in range(0, self.blocks * self.page_bytes, self.page_bytes):
            xxhash.xxh3_128_digest(memory[start : start + self.page_bytes])

    def load(self, wanted: list[bytes]) -> None:
        answer = self.engine.lookup(wanted)
        if answer.full != len(wanted) or answer.lease is None:
            raise SystemExit(f"only {answer.full} of {len(wanted)} pages were found: {answer.code}")
        self.engine.scheduler.loading(answer.lease)
        view = self.engine.rank.begin_copy(answer.lease.session)
        if view is None:
            raise SystemExit("the session ended")
        self._still(view, answer.slots, answer.generations)
        offsets = [slot * GRANULE for slot in answer.slots]
        self.copier.fetch(view.memory, list(range(self.blocks)), offsets, self.copier.mark())
        self._still(view, answer.slots, answer.generations)
        self.engine.rank.end_copy()
        self.engine.scheduler.release(answer.lease)

    @staticmethod
    def _still(view: Any, slots: Any, generations: Any) -> None:
        if any(view.generation(slot) != generation for slot, generation in zip(slots, generations, strict=True)):
            raise SystemExit("a slot changed under its lease")


def timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def local_rows(repeats: int, total: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    for name, (layers, segment) in SHAPES.items():
        page_bytes = layers * segment
        blocks = max(8, total // page_bytes)
        pool = (blocks * page_bytes * 4 // (64 << 20) + 6) * (64 << 20)
        with Stack("a", pool, mover=False) as stack:
            engine = Engine(stack.options("a"), page_bytes, name)
            copier = make_copier(caches(layers, segment, blocks), blocks, 32)
            turn = Round(engine, copier, blocks, page_bytes)
            times: dict[str, list[float]] = {"copy": [], "grant": [], "save": [], "store": [], "hash": [], "load": []}
            ratios: dict[str, list[float]] = {"save": [], "store": [], "load": []}
            for i in range(repeats + 2):
                wanted = keys(blocks)
                before = timed(turn.copy)
                start = time.perf_counter()
                grant = turn.grant(wanted)
                granted = time.perf_counter() - start
                save = timed(lambda: turn.save(wanted, grant))  # noqa: B023 (called at once)
                middle = timed(turn.copy)
                load = timed(lambda: turn.load(wanted))  # noqa: B023
                after = timed(turn.copy)
                again = turn.grant(keys(blocks))
                store = timed(lambda: turn.store(again))  # noqa: B023
                turn.abandon(again)
                hashed = timed(turn.hash)
                if i < 2:
                    continue  # the first rounds touch memory for the first time
                times["copy"] += [before, middle, after]
                times["grant"].append(granted)
                times["save"].append(save)
                times["load"].append(load)
                times["store"].append(store)
                times["hash"].append(hashed)
                ratios["store"].append(after / store)
                ratios["save"].append((before + middle) / 2 / save)
                ratios["load"].append((middle + after) / 2 / load)
            engine.close()
        gigabytes = blocks * page_bytes / 1e9
        row: dict[str, Any] = {"what": name, "pages": blocks, "page_KiB": page_bytes >> 10}
        for what in ("copy", "store", "hash", "save", "load"):
            row[f"{what}_GB/s"] = gigabytes / statistics.median(times[what])
        row["grant_ms"] = statistics.median(times["grant"]) * 1e3
        for what, values in ratios.items():
            row[f"{what}/copy"] = statistics.median(values)
            if what == "store":
                continue
            goals.append(at_least(f"{what} of {name} against a plain copy", statistics.median(values), 0.8))
        rows.append(row)
    return rows, goals


def fetch_rows(repeats: int, total: int) -> tuple[list[dict[str, Any]], list[Goal]]:
    rows: list[dict[str, Any]] = []
    goals: list[Goal] = []
    for name, (layers, segment) in SHAPES.items():
        page_bytes = layers * segment
        # Each comparison starts its processes anew: how a process and its memory happen to lie moves its rate by a quarter.
        tries = sorted((_compare(page_bytes, repeats, total) for _ in range(FETCH_TRIES)), key=lambda one: float(one["ratio"]))
        found = tries[FETCH_TRIES // 2]
        row = {"what": f"fetch {name}", "pages": found["pages"], "page_KiB": page_bytes >> 10}
        row |= {"bare_nixl_GB/s": found["bare_gb_s"], "movers_GB/s": found["movers_gb_s"], "movers/bare": found["ratio"]}
        rows.append(row)
        goals.append(at_least(f"fetch of {name} against two bare NIXL agents", found["ratio"], 0.9))
    return rows, goals


def _compare(page_bytes: int, repeats: int, total: int) -> dict[str, Any]:
    """In a process of its own: one that has torch in it reads faster than one that has not, and movers have not."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "pair.json")
        flags = ["--repeats", str(repeats), "--page", str(page_bytes), "--total", str(total), "--json", str(out)]
        command = [sys.executable, str(Path(__file__).with_name("nixl_pair.py")), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["results"][0]
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--total", type=size, default=128 << 20, help="bytes moved per round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows, goals = local_rows(arguments.repeats, arguments.total)
    more_rows, more_goals = fetch_rows(arguments.repeats, arguments.total)
    show([rows, more_rows], [*goals, *more_goals], arguments.json)
    return ended([*goals, *more_goals])


if __name__ == "__main__":
    sys.exit(main())
