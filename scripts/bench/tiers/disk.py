"""The tier's disk level beside dd on the same file system, in turns.

write   from the put that takes the pool above its upper mark until the last page is on disk with which the tier is down at its
        lower one
read    get of those pages, oldest first: lookup ▶ read ▶ verified, sealed ▶ copied out by the client
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from children import Children
from stack import Stack

from tiers.clients import attached
from tiers.figures import Rounds, Span
from tiers.rows import DD, FIO, READ, WRITE
from tiers.yardstick import Yardstick

POOL = 512 << 20
HIGH, LOW = 0.9, 0.25
BATCH = 16 << 20
LOOK_S, CALM_S = 0.004, 0.5
WAIT_S = 120.0


def disk(page_bytes: int, rounds: int, where: Path, seeds: itertools.count[int]) -> tuple[Rounds, bool]:
    """Each round with a tier of its own and empty files in a folder below `where`. The flag: past the kernel's cache."""
    found = Rounds(page_bytes)
    folder = Path(tempfile.mkdtemp(prefix="pfd-", dir=where))
    pages = int(POOL * (HIGH - LOW)) // page_bytes
    try:
        with Yardstick(folder, pages, page_bytes) as yardstick:
            for number in range(rounds):
                turns = [lambda: _tier(page_bytes, folder / "tier", seeds), lambda: _others(yardstick)]
                for turn in turns[:: -1 if number % 2 else 1]:
                    for way, span in turn():
                        found.add(way, span)
            return found, yardstick.direct
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _others(yardstick: Yardstick) -> Iterator[tuple[str, Span]]:
    yield DD + WRITE, yardstick.write()
    yield DD + READ, yardstick.read()
    if yardstick.has_fio():
        for what in (WRITE, READ):
            yield FIO + what, yardstick.fio(what)


def _tier(page_bytes: int, folder: Path, seeds: itertools.count[int]) -> Iterator[tuple[str, Span]]:
    flags = ["--disk-dir", str(folder), "--disk-size", str(8 * POOL), "--evict-high", str(HIGH), "--evict-low", str(LOW)]
    with Stack("a", POOL, mover=False, more={"a": flags}) as stack, Children() as children:
        client = attached(children, stack, "a", BATCH // page_bytes, page_bytes)
        batches = [next(seeds) for _ in range(int(POOL * HIGH) // BATCH + 1)]
        for batch in batches:
            client.prepare([batch])
            crossing = client.put()
        written, end = _settled(stack)
        yield WRITE, Span(crossing.begin, end, written)
        spans = []
        for batch in batches[: written * page_bytes // BATCH - 1]:
            client.prepare([batch])
            spans.append(client.get())
        yield READ, Span(0.0, sum(span.seconds for span in spans), sum(span.from_disk for span in spans))
    shutil.rmtree(folder)


def _settled(stack: Stack) -> tuple[int, float]:
    """Pages on disk, and when the last of them was: afterwards none has come for a while."""
    written, last, end = 0, 0.0, time.monotonic() + WAIT_S
    while (now := time.monotonic()) < end:
        dump = stack.dump("a")
        if dump and dump["counts"].get("disk_written", 0) > written:
            written, last = dump["counts"]["disk_written"], time.monotonic()
        elif dump and written and not dump["disk"]["writing"] and now - last > CALM_S:
            if lost := dump["counts"].get("disk_not_stored", 0):
                raise SystemExit(f"{lost} pages were evicted without being written")
            return written, last
        time.sleep(LOOK_S)
    raise SystemExit("the tier did not write its pages out")
