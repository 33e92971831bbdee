"""A disk level full of pages: found at a start, made room on, kept, looked for."""

from __future__ import annotations

from typing import Any

from pegaflow.common.lifecycle import collect_little_and_often
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.inspection import Find
from pegaflow.common.wire.messages.space import Keep
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.carrier import FOUND_RECORDS
from pegaflow.services.tier.disk.index import SEGMENTS
from pegaflow.services.tier.disk.level import DiskOptions
from pegaflow.services.tier.disk.record import Record
from pegaflow.services.tier.eviction.shares import SpaceOptions

from stalled.memory import hand_over, snapshot
from stalled.recorder import Collector, Recorder
from stalled.tier import SUM, Tier, keys_of

MEMORY = 4096


def run(pages: int) -> list[dict[str, Any]]:
    collect_little_and_often()
    recorder, keys = Recorder(), keys_of(pages)
    each = pages // SEGMENTS
    options = DiskOptions(SEGMENTS * max(each * GRANULE, 64 << 20), floor=SEGMENTS)
    size = options.capacity // SEGMENTS
    tier = Tier(MEMORY, recorder, disk=options)
    tier.engine("p")
    collector = Collector()

    def found() -> None:
        for number in range(1, SEGMENTS + 1):
            mine = keys[(number - 1) * each : number * each]
            records = [Record(key, number, i * GRANULE, (GRANULE,), 16, (SUM,)) for i, key in enumerate(mine)]
            tell(tier, number, size, records)
            if number % 8 == 0:
                tier.tick(0.5)
        tier.feed(events.SegmentsEnded())
        tier.tick(0.5)

    recorder.case(f"{SEGMENTS} segments of the life before, with beats between", found)
    recorder.rows += collector.rows("meanwhile")
    recorder.case("status", lambda: recorder.call("dump", tier.state.dump), 3)
    recorder.case("page find, nothing there", lambda: tier.ask(Find(b"\x01\x02\x03\x04\x05\x06")), 3)
    recorder.case("a snapshot for a metaserver", lambda: snapshot(tier, 1))
    recorder.case("the node leaves: it hands over", lambda: hand_over(tier))

    tier.fill(keys_of(MEMORY, 2))
    tier.state.pages.space.retune(SpaceOptions(evict_high=0.5, evict_low=0.25))
    recorder.case("pages are written, the oldest segment goes", lambda: spill(tier))
    few = max(1, each // 4) * 8
    recorder.case(f"keep {few} pages that are on disk", lambda: tier.ask(Keep(keys[-few:], 3_600_000)))
    recorder.case("status with them", lambda: recorder.call("dump", tier.state.dump), 3)
    tier.fill(keys_of(MEMORY // 2, 3))
    recorder.case("pages are written, with them", lambda: spill(tier))
    return recorder.rows


def tell(tier: Tier, number: int, size: int, records: list[Record]) -> None:
    """As the carrier does."""
    for at in range(0, len(records), FOUND_RECORDS):
        tier.feed(events.SegmentFound(number, size, records[at : at + FOUND_RECORDS], not at))


def spill(tier: Tier) -> None:
    for _ in range(32):
        todo = tier.tick()
        for command in todo:
            if isinstance(command, commands.DiskWrite):
                tier.feed(events.DiskWritten(command.job, ""))
    tier.ticks(0.5)
