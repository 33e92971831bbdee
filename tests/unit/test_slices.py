"""What ends very much at once takes a slice per tick, and is right between two of them."""

from __future__ import annotations

from typing import Any

import pytest
from disk_script import DiskScript
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.attach import Attached
from pegaflow.common.wire.messages.catalogue import DISK, GONE, SEALED, Sync
from pegaflow.services.tier import departures, events, handover, leases
from pegaflow.services.tier.disk import level
from test_disk_segments import record
from test_draining import handing_over
from tier_script import Script, key


def ticks(script: Script) -> int:
    """Until it rests."""
    count = 0
    while script.tier.rest(script.now) <= 0:
        script.now += 0.02
        script.feed(events.Tick())
        count += 1
    return count


def dies(script: Script, engine: str, role: str) -> None:
    attached = script.members[engine, role, 0]
    script.feed(events.Proven(attached.session, attached.member))


def test_a_dead_rank_stays_a_member_until_all_its_slots_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "SLOTS", 1)
    script = Script().engine()
    script.intent([1, 2])
    script.intent([3, 4], request="other")
    used = script.tier.pages.allocator.used
    dies(script, "p", "rank")
    assert script.tier.pages.allocator.used == used - 1
    taken = script.attach("p", "rank", 0, nonce=b"anew".ljust(16, b"-"))
    assert taken.code == "session_taken", "it comes back when the slots of the one before are free"
    dies(script, "p", "rank")
    assert script.tier.counts["members_dead"] == 1, "it dies once"
    assert ticks(script) >= 3
    assert script.tier.pages.allocator.used == used - 4 and not script.tier.saves.grants
    assert isinstance(script.attach("p", "rank", 0, nonce=b"anew".ljust(16, b"-")), Attached)


def test_leases_of_a_dead_engine_end_some_at_a_time_whatever_it_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "END_PAGES", 1)
    script = Script().engine().engine("d")
    script.save([1, 2, 3])
    held = [script.lookup(numbers, engine="d").lease for numbers in ([1, 2], [1, 2, 3], [3])]
    script.tier.leases.loading(held[:1], script.members["d", "scheduler", 0].session)
    dies(script, "d", "scheduler")
    assert len(script.tier.leases.open) == 2
    ticks(script)
    assert not script.tier.leases.open and script.tier.counts["leases_expired"] == 0
    assert script.tier.dump()["references"] == 0


def test_promises_of_a_silent_engine_are_dropped_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "SLOTS", 2)
    script = Script().engine()
    grant = script.intent([1, 2, 3, 4, 5])
    script.now += 2.0
    script.feed(events.Tick())
    assert script.tier.dump()["pages"] == {"pending": 3, "stale": 2}
    ticks(script)
    assert script.tier.counts["promises_stale"] == 5
    script.hashed(script.word(grant))
    assert script.sealed() == {1, 2, 3, 4, 5}, "it wrote them after all"


def test_what_went_with_a_segment_is_not_read_and_the_catalogue_hears_of_it_bit_by_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level, "GONE_KEYS", 1)
    script = DiskScript(capacity=8 * GRANULE, floor=9)
    script.feed(events.SegmentFound(5, 4 * GRANULE, [record(100 + i, 5, i) for i in range(4)]))
    script.feed(events.SegmentFound(7, 6 * GRANULE, [record(200, 7, 0)]))
    assert not any(script.tier.disk.has(key(100 + i)) for i in range(4))
    gone = [i for i in range(4) if script.heard[key(100 + i)][0] == GONE]
    assert len(gone) == 1
    again = max(i for i in range(4) if i not in gone)
    script.feed(events.SegmentFound(7, 6 * GRANULE, [record(100 + again, 7, 1)], False))
    for _ in range(8):
        script.tick()
    there = {i: script.heard[key(100 + i)] for i in range(4)}
    assert there.pop(again) == (SEALED, DISK), "it is there again"
    assert {state for state, _ in there.values()} == {GONE}
    assert script.tier.disk.has(key(100 + again)) and script.tier.counts["disk_evicted"] == 4


def test_more_of_a_segment_that_has_gone_already_is_not_taken() -> None:
    script = DiskScript(capacity=8 * GRANULE, floor=9)
    script.feed(events.SegmentFound(5, 4 * GRANULE, [record(100, 5, 0)]))
    script.feed(events.SegmentFound(7, 6 * GRANULE, [record(200, 7, 0)]))
    script.feed(events.SegmentFound(5, 4 * GRANULE, [record(101, 5, 1)], False))
    assert list(script.tier.disk.index.segments) == [7]


def test_a_pool_is_handed_over_slab_by_slab_the_most_recently_used_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "SLICE", 1)
    numbers = list(range(20))  # in slabs of eight
    others = handing_over(numbers, {"b": 100})
    script = others.script
    script.lookup([0])
    others.round()
    assert not others.offers and script.tier.draining.handover.collecting and script.tier.rest(script.now) == 0
    script.tier.draining.end()
    script.save([30])
    script.tier.draining.begin(True)
    view: dict[str, Any] = others.until_done()
    assert [one for _, keys in others.offers for one in keys] == [key(n) for n in (30, 0, *reversed(range(1, 20)))]
    assert view["handed_over"] == 21 and view["left_behind"] == 0


def test_a_snapshot_that_nobody_asks_on_about_is_let_go() -> None:
    script = Script().engine()
    script.save([1, 2])
    announced = script.tier.pages.announced
    script.tier._snapshots._walks.clear()
    chunk = script.ask(Sync(9, 1, 0))
    assert chunk.chunks == 1 and not announced._pasts, "told, so nothing is remembered"
    script.tier._snapshots.chunk(Sync(9, 2, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pegaflow.services.tier.snapshots.SYNC_KEYS", 1)
        script.tier._snapshots.chunk(Sync(9, 3, 0))
    assert len(announced._pasts) == 1
    script.now += 11
    script.feed(events.Tick())
    assert not announced._pasts
    assert script.ask(Sync(9, 3, 1)).code == "stale_sync"
