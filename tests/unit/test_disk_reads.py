"""Pages that come back from disk: for lookups, for other tiers, for nobody."""

from __future__ import annotations

from typing import Any

import pytest
from disk_script import DiskScript, answers
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages import loads
from pegaflow.common.wire.messages.catalogue import DISK, GONE, MEMORY, NO_OWNER, SEALED, Located
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.common.wire.messages.saves import GRANTED
from pegaflow.common.wire.messages.space import Probe, Probed
from pegaflow.common.wire.messages.transfer import Pin, Pinned
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.disk.level import READ_DEADLINE_S
from pegaflow.services.tier.pins import VERIFY_S
from tier_script import checksum, key


def test_a_lookup_reads_what_is_on_disk_and_does_not_hold_others_up() -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:3]
    assert script.lookup(there) is None
    asked = script.looked
    read = script.pending.pop()
    assert isinstance(read, commands.DiskRead) and [record.key for record in read.records] == [key(n) for n in there]
    assert [script.heard[key(n)] for n in there] == [(SEALED, DISK)] * 3
    quick = script.lookup(sorted(script.sealed())[:1])
    assert isinstance(quick, Hits) and quick.full == 1
    (answer,) = answers(script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records])), Hits)
    assert answer.lookup == asked.lookup and answer.full == 3 and bytes(answer.sources) == bytes([loads.DISK]) * 3
    assert script.on_disk() >= set(there) and [script.heard[key(n)] for n in there] == [(SEALED, MEMORY)] * 3
    script.release(answer)
    script.release(quick)
    written = script.tier.counts["disk_written"]
    script.fill(range(20, 40))
    assert not set(there) & script.sealed() and set(there) <= script.on_disk(), "read, evicted again, still there"
    assert script.tier.counts["disk_written"] - written == len(script.on_disk()) - written, "and not written again"
    assert script.quiet()


@pytest.mark.parametrize("result", ["truncated", "io_error", "bits", None])
def test_a_page_that_cannot_be_read_is_off_the_disk_and_harms_no_other(result: str | None) -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:3]
    script.lookup(there)
    read = script.pending.pop()
    found: Any = [one.checksums for one in read.records]
    found[1] = (checksum("other bytes"),) if result == "bits" else result
    (answer,) = answers(script.feed(events.DiskReadEnded(read.job, found if result else None)), Hits)
    assert answer.full == (1 if result else 0) and answer.reason == ErrorCode.UNKNOWN
    lost = {there[1]} if result else set(there)
    assert not lost & script.on_disk() and set(there) - lost <= script.on_disk()
    assert all(script.heard[key(n)] == (GONE, MEMORY) for n in lost)
    counts = script.tier.counts
    code = {"bits": ErrorCode.BAD_CHECKSUM, None: ErrorCode.INTERNAL}.get(result, result)
    assert counts[f"disk_failed_{code}"] == len(lost)
    assert counts["disk_bad_checksum"] + counts["disk_read_failed"] == len(lost)
    if answer.lease:
        script.release(answer)
    assert script.quiet()


def test_a_read_that_hangs_is_given_up_and_its_slots_stay_out_of_use() -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:2]
    assert script.lookup(there, wait_ms=60_000) is None
    read = script.pending.pop()
    free = script.tier.pages.allocator.free_granules()
    out = script.tick(READ_DEADLINE_S)
    assert [one.job for one in out if isinstance(one, commands.DiskGiveUp)] == [read.job]
    (answer,) = answers(out, Hits)
    assert answer.full == 0 and script.tier.pages.allocator.free_granules() == free
    assert script.ask(Probe([key(there[0])])).states == bytes([0]), "a disk that hangs is not asked for more"
    script.fill(range(20, 26))
    assert not script.pending
    script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    assert script.quiet() and set(there) <= script.on_disk() and not set(there) & script.sealed()
    assert script.lookup(there) is None and script.settle() == 0, "it answers again"
    assert set(there) <= script.sealed()


def test_reads_wait_for_room_among_the_reads() -> None:
    script = DiskScript(queue=2 * GRANULE)
    script.fill(range(24))
    there = sorted(script.on_disk())[:6]
    assert script.lookup(there) is None
    assert script.tier.disk.reading_bytes == 2 * GRANULE
    out: list[commands.Command] = []
    while script.pending:
        read = script.pending.pop(0)
        out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    (answer,) = answers(out, Hits)
    assert answer.full == 6
    script.release(answer)
    assert script.quiet()


def test_a_prefix_longer_than_memory_is_cut_to_what_fits() -> None:
    script = DiskScript()
    script.fill(range(50))
    there = sorted(script.on_disk())[:24]
    assert script.lookup(there) is None
    out: list[commands.Command] = []
    while script.pending:
        read = script.pending.pop(0)
        out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    (answer,) = answers(out, Hits)
    assert answer.full == 16 and answer.reason == ErrorCode.NO_SPACE
    script.release(answer)
    assert script.quiet()


def test_two_lookups_that_want_more_than_memory_holds_do_not_take_pages_from_each_other_for_ever() -> None:
    script = DiskScript(queue=3 * GRANULE)
    script.fill(range(50))
    there = sorted(script.on_disk())
    first, second = there[:12], there[12:24]
    script.lookup(first)
    script.lookup(second)
    out: list[commands.Command] = []
    for _ in range(60):
        if script.pending:
            read = script.pending.pop()  # not in their order
            out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    found = answers(out, Hits)
    assert not script.pending and len(found) == 2, "both have an answer, and time has not passed"
    assert sum(answer.full for answer in found) > 12
    for answer in found:
        script.release(answer)
    assert script.quiet()


def test_a_pin_for_more_than_memory_holds_reads_each_page_once() -> None:
    script = DiskScript()
    script.fill(range(50))
    there = sorted(script.on_disk())[:24]
    assert script.ask(Pin("b", [key(n) for n in there], 1, 4000)) is None
    reads, out = 0, []
    while script.pending:
        read = script.pending.pop(0)
        reads += len(read.records)
        out += script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records]))
    (answer,) = answers(out, Pinned)
    assert reads == 16 == len(answer.positions)


def test_who_does_not_wait_finds_it_the_next_time() -> None:
    script = DiskScript()
    script.fill(range(20))
    there = sorted(script.on_disk())[:2]
    answer = script.lookup(there, wait_ms=0)
    assert isinstance(answer, Hits) and answer.full == 0 and answer.reason == ErrorCode.DEADLINE
    script.settle()
    answer = script.lookup(there, wait_ms=0)
    assert isinstance(answer, Hits) and answer.full == 2
    script.release(answer)


def test_a_short_answer_of_the_metaserver_hides_nothing_that_is_on_disk() -> None:
    script = DiskScript(metaserver=True)
    script.fill(range(20))
    first, second = sorted(script.on_disk())[:2]
    there = [first, 900, second]  # the middle one is nowhere here
    assert script.lookup(there) is None
    script.settle()
    (locate,) = [one for one in script.asked if isinstance(one, commands.Locate)]
    assert locate.keys == [key(900)]
    located = Located(bytes([GONE]), 1, u32s([NO_OWNER]), [], u64s([]), [])
    (answer,) = answers(script.feed(events.LocateAnswer(locate.ask, located)), Hits)
    assert answer.full == 1
    script.release(answer)
    answer = script.lookup([first, second])
    script.settle()
    assert {first, second} <= script.sealed()


def test_an_intent_for_a_page_on_disk_is_granted_and_the_copy_there_is_kept() -> None:
    """`have` is said of verified pages only; the engine has the page anyway."""
    script = DiskScript()
    script.fill(range(20))
    number = min(script.on_disk())
    grant = script.intent([number], request="again")
    assert bytes(grant.statuses) == bytes([GRANTED])
    assert script.heard[key(number)] == (SEALED, DISK), "a promise does not hide the copy on disk"
    script.hashed(script.word(grant))
    assert script.heard[key(number)] == (SEALED, MEMORY) and number in script.on_disk()


def test_another_tier_gets_what_is_on_disk() -> None:
    script = DiskScript()
    script.fill(range(20))
    there, here = sorted(script.on_disk())[:2], min(script.sealed())
    assert script.ask(Pin("b", [key(here), *map(key, there)], 1, 4000)) is None
    read = script.pending.pop()
    (answer,) = answers(script.feed(events.DiskReadEnded(read.job, [one.checksums for one in read.records])), Pinned)
    assert list(answer.positions) == [0, 1, 2]
    assert script.ask(Probe([key(there[0])])).levels == bytes([MEMORY])


def test_another_tier_does_not_wait_for_a_slow_disk_for_long() -> None:
    script = DiskScript()
    script.fill(range(20))
    there, here = sorted(script.on_disk())[:2], min(script.sealed())
    assert script.ask(Pin("b", [key(here), *map(key, there)], 1, 4000)) is None
    (answer,) = answers(script.tick(VERIFY_S), Pinned)
    assert list(answer.positions) == [0]
    script.settle()
    answer = script.ask(Pin("b", [*map(key, there)], 1, 4000))
    assert isinstance(answer, Pinned) and list(answer.positions) == [0, 1], "it has come meanwhile"


def test_a_probe_names_the_level() -> None:
    script = DiskScript()
    script.fill(range(20))
    answer = script.ask(Probe([key(min(script.on_disk())), key(min(script.sealed())), key(99)]))
    assert isinstance(answer, Probed)
    assert (answer.states, answer.levels) == (bytes([2, 2, 0]), bytes([DISK, MEMORY, MEMORY]))


def test_a_key_that_a_pin_names_twice_is_read_once() -> None:
    script = DiskScript()
    script.fill(range(14))
    script.settle()
    below = key(min(script.on_disk() - script.sealed()))
    script.ask(Pin("b", [below, below], 1, 4000))
    assert len(script.tier.disk.reading) == 1
