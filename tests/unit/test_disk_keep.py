"""What is kept on request and lies on disk: it stays there, with its segment, within a share of the disk."""

from __future__ import annotations

from typing import Any

from disk_script import CAPACITY, DiskScript
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.catalogue import GONE, MEMORY
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.common.wire.messages.space import Keep, Kept, Unkeep
from pegaflow.services.tier import events
from tier_script import key

TTL_S = 60.0


def keep(script: DiskScript, numbers: list[int], seconds: float = TTL_S) -> Any:
    return script.ask(Keep([key(n) for n in numbers], int(seconds * 1e3)))


def test_a_page_that_is_kept_does_not_leave_the_disk() -> None:
    script = DiskScript()
    script.fill(range(20))
    kept, other = sorted(script.on_disk())[:2]
    segment = script.tier.disk.index.segment
    assert keep(script, [kept, 999]) == Kept(bytes([1, 0]), segment), "a segment is held as a whole"
    script.fill(range(20, 150))
    assert {kept, other} <= script.on_disk() and script.tier.counts["disk_evicted"] > 64
    assert script.tier.disk.index.taken <= CAPACITY and script.tier.counts["disk_not_stored"] == 0, "the rest goes round"
    script.lookup([kept])
    script.settle()
    assert kept in script.sealed(), "and can be read"

    script.tick(TTL_S)
    script.fill(range(150, 250))
    assert kept not in script.on_disk() and script.heard[key(kept)] == (GONE, MEMORY)
    assert script.tier.dump()["disk"]["kept_bytes"] == 0 and script.quiet()


def test_a_later_end_wins_and_unkeep_ends_it() -> None:
    script = DiskScript()
    script.fill(range(20))
    kept = min(script.on_disk())
    keep(script, [kept])
    keep(script, [kept], 1.0)
    script.tick(2.0)
    script.fill(range(20, 120))
    assert kept in script.on_disk()
    script.ask(Unkeep([key(kept)]))
    script.fill(range(120, 220))
    assert kept not in script.on_disk()


def test_a_kept_page_that_is_lost_holds_nothing_when_it_comes_again() -> None:
    """Its next copy lies in another segment, which nobody has asked to keep: together they could be more than the share."""
    script = DiskScript()
    script.fill(range(20))
    kept = min(script.on_disk())
    keep(script, [kept])
    assert script.lookup([kept], wait_ms=1000) is None
    read = script.pending.pop()
    script.feed(events.DiskReadEnded(read.job, ["io_error"]))
    assert kept not in script.on_disk()
    script.save([kept], request="again")
    script.fill(range(20, 40))
    assert kept in script.on_disk()
    assert script.tier.disk.keeps.bytes_held(script.now) == 0
    script.fill(range(40, 140))
    assert kept not in script.on_disk()


def test_more_than_a_share_of_the_disk_is_refused_and_changes_nothing() -> None:
    script = DiskScript()
    script.fill(range(60))
    records = script.tier.disk.index.records
    segments = sorted({one.segment for one in records.values()})
    by_segment = [next(n for n in sorted(script.on_disk()) if records[key(n)].segment == number) for number in segments]
    in_memory = min(script.sealed())
    answer = keep(script, [in_memory, *by_segment[:2]])
    assert answer.code == ErrorCode.KEEP_FULL and "0.25 of the disk" in answer.text
    assert script.tier.dump()["disk"]["kept_pages"] == script.tier.dump()["space"]["kept_bytes"] == 0
    assert keep(script, by_segment[:1]).states == bytes([1])
    assert keep(script, by_segment[1:2]).code == ErrorCode.KEEP_FULL
    same = [n for n in sorted(script.on_disk()) if records[key(n)].segment == segments[0]]
    assert keep(script, same).states == bytes([1] * len(same)), "a held segment costs no more"
    too_much = keep(script, [*same, *sorted(script.sealed())])
    assert too_much.code == ErrorCode.KEEP_FULL and "of the pool" in too_much.text


def test_what_is_in_memory_too_is_held_in_both_places_where_the_disk_has_room_for_it() -> None:
    script = DiskScript()
    script.fill(range(60))
    records = script.tier.disk.index.records
    segments = sorted({one.segment for one in records.values()})
    both = [next(n for n in sorted(script.on_disk()) if records[key(n)].segment == number) for number in segments[:2]]
    for number in both:
        answer = script.lookup([number])
        script.settle()
        if isinstance(answer, Hits):
            script.release(answer)
    assert set(both) <= script.sealed() & script.on_disk()
    answer = keep(script, both)
    assert answer.states == bytes([1, 1]), "never refused for the sake of the second copy"
    assert answer.kept_bytes == 2 * GRANULE + script.tier.disk.index.segment
    script.fill(range(60, 160))
    assert both[0] in script.on_disk() and both[1] not in script.on_disk() and set(both) <= script.sealed()


def test_a_kept_page_that_turns_out_bad_holds_nothing() -> None:
    script = DiskScript()
    script.fill(range(20))
    kept = min(script.on_disk())
    keep(script, [kept])
    script.lookup([kept])
    script.feed(events.DiskReadEnded(script.pending.pop().job, ["io_error"]))
    assert kept not in script.on_disk() and script.tier.dump()["disk"]["kept_bytes"] == 0
    assert keep(script, [kept]).states == bytes([0])


def test_what_has_left_is_not_kept_for_the_sake_of_what_continues_it() -> None:
    """The end of a request's chain may be evicted before the request goes on: nothing hangs on it then."""
    script = DiskScript()
    script.save([1], request="chain")
    script.fill(range(100, 130))
    assert 1 not in script.sealed()
    script.save([2], request="chain")
    assert keep(script, [2]).kept_bytes == GRANULE
