"""Pages that leave memory for the disk: what is written, what is not, and what that costs others."""

from __future__ import annotations

from disk_script import DiskScript
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages import loads
from pegaflow.common.wire.messages.catalogue import DISK, GONE, MEMORY, SEALED, Sync, SyncChunk
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.common.wire.messages.saves import GRANTED
from pegaflow.services.tier import events
from pegaflow.services.tier.disk.level import HANG_S, PAUSE_S
from tier_script import key


def test_what_leaves_memory_ahead_of_need_is_on_disk_and_in_the_catalogue() -> None:
    script = DiskScript()
    script.fill(range(30))
    assert script.on_disk() | script.sealed() == set(range(30))
    assert len(script.sealed()) <= 12 and not script.on_disk() & script.sealed()
    assert script.tier.counts["disk_not_stored"] == 0
    for number in range(30):
        level = DISK if number in script.on_disk() else MEMORY
        assert script.heard[key(number)] == (SEALED, level), "never `gone` in between"
    chunk = script.ask(Sync(1, 1, 0))
    assert isinstance(chunk, SyncChunk)
    assert dict(zip(chunk.keys, chunk.levels, strict=True)) == {
        key(number): DISK if number in script.on_disk() else MEMORY for number in range(30)
    }
    assert script.quiet()


def test_a_page_that_is_being_written_can_still_be_read_and_stays_if_it_is() -> None:
    script = DiskScript()
    for number in range(13):
        script.save([number], request=f"r{number}")
    script.tick()
    write = script.pending[0]
    number = int.from_bytes(write.records[0].key[16:20], "big")
    answer = script.lookup([number])
    assert isinstance(answer, Hits) and answer.full == 1 and bytes(answer.sources) == bytes([loads.LOCAL])
    script.settle()
    assert number in script.sealed() and number in script.on_disk()
    assert script.heard[key(number)] == (SEALED, MEMORY)
    script.release(answer)
    assert script.quiet()


def test_what_a_grant_needs_at_once_is_evicted_and_not_stored() -> None:
    script = DiskScript()
    for number in range(20):
        assert bytes(script.save([number], request=f"r{number}").statuses) == bytes([GRANTED])  # no tick in between
    assert script.tier.counts["disk_not_stored"] == 4 and not script.pending
    assert script.heard[key(0)] == (GONE, MEMORY)


def test_a_full_queue_makes_trimming_wait_and_grants_evict() -> None:
    script = DiskScript(queue=2 * GRANULE)
    for number in range(14):
        script.save([number], request=f"r{number}")
    script.tick()
    script.tick()
    assert script.tier.disk.writing_bytes == 2 * GRANULE and script.tier.counts["disk_not_stored"] == 0
    for number in range(14, 20):
        script.save([number], request=f"r{number}")
    assert script.tier.counts["disk_not_stored"] == 4, "the disk is slow: nobody waits for it"
    script.settle()
    assert script.tier.counts["disk_not_stored"] == 4 and len(script.sealed()) <= 12
    assert script.quiet()


def test_a_failed_write_costs_its_pages_only_and_is_not_repeated_at_once() -> None:
    script = DiskScript()
    script.fill(range(14))
    before = script.on_disk()
    for number in range(14, 20):
        script.save([number], request=f"r{number}")
    script.settle("disk_full")
    counts = script.tier.counts
    assert script.on_disk() == before and counts["disk_write_failed"] >= 4 and counts["disk_failed_disk_full"] == 1
    assert counts["disk_not_stored"] == counts["disk_write_failed"] and len(script.sealed()) <= 12
    script.fill(range(20, 26))
    assert script.on_disk() == before and counts["disk_failed_disk_full"] == 1, "it is left in peace for a while"
    script.tick(PAUSE_S)
    script.fill(range(26, 40))
    assert script.on_disk() > before
    assert script.quiet()


def test_a_disk_that_fails_for_long_costs_no_older_page_its_room() -> None:
    script = DiskScript(capacity=32 * GRANULE)
    script.fill(range(24))
    before, taken = script.on_disk(), script.tier.disk.index.taken
    for number in range(24, 60):
        script.save([number], request=f"r{number}")
        script.settle("io_error")
        script.tick(PAUSE_S)
    index = script.tier.disk.index
    assert script.on_disk() == before and index.taken <= taken + index.segment
    assert script.tier.counts["disk_evicted"] == 0 and script.tier.counts["disk_failed_io_error"] > 5


def test_the_disk_drops_its_oldest_segment_and_says_so() -> None:
    script = DiskScript(capacity=16 * GRANULE)
    script.fill(range(60))
    index = script.tier.disk.index
    assert index.taken <= 16 * GRANULE and script.tier.counts["disk_evicted"] > 0
    gone = set(range(60)) - script.on_disk() - script.sealed()
    assert gone == set(range(len(gone))), "first in, first out"
    assert all(script.heard[key(number)] == (GONE, MEMORY) for number in gone)


def test_a_disk_that_does_not_end_a_write_is_left_in_peace_and_shown() -> None:
    script = DiskScript()
    script.fill(range(14))
    for number in range(14, 18):
        script.save([number], request=f"r{number}")
    script.tick()
    hung = script.pending.pop()
    held = {int.from_bytes(record.key[16:20], "big") for record in hung.records}
    script.tick(HANG_S)
    view = script.tier.dump()["disk"]
    assert view["state"] == "hangs" and script.tier.counts["disk_hangs"] == 1 and script.tier.disk.hangs
    for number in range(18, 60):
        script.save([number], request=f"r{number}")
        script.tick()
    assert not script.pending and script.tier.counts["disk_not_stored"] > 30, "pages go, and are not stored"
    assert held <= script.sealed(), "what it may still read stays where it is"
    answer = script.lookup(sorted(held))
    assert isinstance(answer, Hits) and answer.full == len(held) and set(answer.sources) == {loads.LOCAL}
    script.release(answer)

    script.feed(events.DiskWritten(hung.job, ""))
    assert script.tier.dump()["disk"]["state"] == "ok" and held <= script.on_disk()
    script.fill(range(60, 70))
    assert script.on_disk() - held - set(range(14)), "it is written to again"
    assert script.quiet()
