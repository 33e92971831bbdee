"""A restart over a full pool: slab by slab, then the time of what was kept, then first uses."""

from __future__ import annotations

from typing import Any

from pegaflow.common.lifecycle import collect_little_and_often
from pegaflow.common.pool import GRANULE
from pegaflow.common.slot_table import Row, SlotEntry, SlotState
from pegaflow.common.wire.messages.transfer import Pin
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.adoption import KEEP_S, Remains
from pegaflow.services.tier.slots import slab_granules

from stalled.recorder import Collector, Recorder
from stalled.tier import SUM, Tier, keys_of

FLOOR = 1 << 32
PINS = 32


def run(pages: int) -> list[dict[str, Any]]:
    collect_little_and_often()
    recorder, slab, keys = Recorder(), slab_granules(pages), keys_of(pages)
    firsts = range(0, pages, slab)
    tier = Tier(pages, recorder, remains=Remains(FLOOR, 100.0, dict.fromkeys(firsts, 1), pages, readers_until=100.0 + KEEP_S))
    tier.engine("p")
    collector = Collector()

    def adopt() -> None:
        for number, first in enumerate(firsts, 1):
            rows = [Row(slot, 7, _entry(keys[slot], slot)) for slot in range(first, min(first + slab, pages))]
            tier.feed(events.SlabFound(first, 1, rows))
            if number % 16 == 0:
                tier.tick(0.5)
        tier.feed(events.SlabsEnded())
        tier.tick(0.5)

    tier.now = 100.0 - KEEP_S  # nothing is due before all are here
    recorder.case("the slabs of the life before, with beats between", adopt)
    recorder.rows += collector.rows("meanwhile")
    tier.now = 100.0 + KEEP_S

    def due() -> None:
        tier.tick(0.1)
        tier.ticks(0.1)

    recorder.case("the time of what was adopted is over", due)
    recorder.case(f"{PINS} pins of 4096 pages that are verified first, with as many events meanwhile", lambda: pins(tier, keys))
    return recorder.rows


def _entry(key: bytes, slot: int) -> SlotEntry:
    return SlotEntry(SlotState.SEALED, key, 0, 1, 16, GRANULE, slot, 0, SUM, 1 + slot)


def pins(tier: Tier, keys: list[bytes]) -> None:
    jobs: list[commands.Hash] = []
    for number in range(PINS):
        wanted = keys[number * 4096 % len(keys) :][:4096]
        jobs += [c for c in tier.feed(events.Asked("b", Pin("b", wanted, 1, 1000))) if isinstance(c, commands.Hash)]
    for job in jobs:
        tier.feed(events.Resumed())
        tier.feed(events.Hashed(job.job, [SUM] * len(job.slots)))
