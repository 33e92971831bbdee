"""A clone, as a script: what the tier says, what the clone asks and what it then knows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mapped_generation import MappedGeneration, live_entries
from pegaflow.common.bus.clone import (
    CHUNK_S,
    CREDIT,
    REMEMBERED_EPOCHS,
    Applied,
    Ask,
    Clone,
    Effect,
    Swapped,
    SyncReason,
    Voided,
    Wanted,
)
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import entry_digest
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, CatalogueBeat, Delta, SyncChunk

ME, E1, E2 = 77, 0xE1, 0xE2
SIZE = 4096


def key(n: int) -> bytes:
    return b"k%03d" % n


def delta(*changes: tuple[int, int]) -> Delta:
    keys = [key(n) for n, _ in changes]
    return Delta(keys, bytes(state for _, state in changes), bytes(len(keys)), u32s([SIZE] * len(keys)))


def chunk(ask: Effect, of: int, head: int, *rows: tuple[int, int]) -> SyncChunk:
    assert isinstance(ask, Ask)
    keys, states = [key(n) for n, _ in rows], bytes(state for _, state in rows)
    sync = ask.sync
    return SyncChunk(
        sync.clone_epoch, sync.sync_id, sync.chunk, of, head, keys, states, bytes(len(keys)), u32s([SIZE] * len(keys))
    )


def beat(*rows: tuple[int, int]) -> CatalogueBeat:
    total = sum(entry_digest(key(n), state, 0, SIZE) for n, state in rows) % (1 << 128)
    states = [state for _, state in rows]
    return CatalogueBeat(total.to_bytes(16, "little"), states.count(PENDING), states.count(SEALED))


def known(clone: Clone) -> dict[int, int]:
    clone.validate()
    return {int(name[1:]): entry_state(entry) for name, entry in live_entries(clone).items()}


def asks(effects: Sequence[Effect]) -> list[Ask]:
    return [effect for effect in effects if isinstance(effect, Ask)]


def new_clone() -> Clone:
    return Clone(ME, itertools.count(1), MappedGeneration)


def whole_clone(*rows: tuple[int, int], head: int = 10, epoch: int = E1) -> Clone:
    clone = new_clone()
    [ask] = asks(clone.shows(epoch, head, None, 0.0, 0.0))
    assert clone.chunk(chunk(ask, 1, head, *rows), 0.0, 0.0) == [Swapped(True)]
    assert clone.whole and not clone.syncing
    return clone


def test_hello_alone_begins_no_snapshot_because_deltas_could_be_missed() -> None:
    clone = new_clone()
    assert clone.meet(E1) == []
    assert not clone.syncing
    assert [type(effect) for effect in clone.shows(E1, 0, None, 0.0, 0.0)] == [Wanted, Ask]


def test_first_snapshot_swaps_in_at_its_last_chunk() -> None:
    clone = new_clone()
    [first] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    assert first.sync.chunk == 0
    [second] = asks(clone.chunk(chunk(first, 2, 10, (1, SEALED)), 0.1, 0.0))
    assert known(clone) == {} and not clone.whole
    assert clone.chunk(chunk(second, 2, 10, (2, PENDING)), 0.2, 0.0) == [Swapped(True)]
    assert known(clone) == {1: SEALED, 2: PENDING}
    assert (clone.sealed, clone.pending, clone.seen) == (1, 1, 10)


def test_deltas_at_or_below_the_head_are_dropped_and_later_ones_applied() -> None:
    clone = new_clone()
    [ask] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    clone.delta(E1, 11, delta((1, PENDING), (2, SEALED)), 0.0, 0.0)
    clone.delta(E1, 12, delta((2, GONE)), 0.0, 0.0)
    clone.delta(E1, 13, delta((3, SEALED)), 0.0, 0.0)
    clone.chunk(chunk(ask, 1, 12, (1, SEALED)), 0.0, 0.0)
    assert known(clone) == {1: SEALED, 3: SEALED}, "the pending of delta 11 is older than the snapshot"
    assert clone.seen == 13


def test_a_snapshot_ahead_of_the_stream_drops_what_the_stream_repeats() -> None:
    clone = new_clone()
    [ask] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    clone.chunk(chunk(ask, 1, 12, (1, SEALED)), 0.0, 0.0)
    assert clone.delta(E1, 11, delta((1, PENDING)), 0.0, 0.0) == []
    assert clone.delta(E1, 12, delta((1, SEALED)), 0.0, 0.0) == []
    assert known(clone) == {1: SEALED}
    assert clone.delta(E1, 13, delta((1, GONE)), 0.0, 0.0) != []
    assert known(clone) == {} and not clone.syncing


def test_credit_keeps_at_most_four_chunks_on_their_way() -> None:
    clone = new_clone()
    [first] = asks(clone.shows(E1, 1, None, 0.0, 0.0))
    flying = asks(clone.chunk(chunk(first, 9, 1, (0, SEALED)), 0.0, 0.0))
    assert [ask.sync.chunk for ask in flying] == [1, 2, 3, 4] and CREDIT == 4
    asked = 4
    while flying:
        more = clone.chunk(chunk(flying[0], 9, 1, (flying[0].sync.chunk, SEALED)), 0.0, 0.0)
        flying = flying[1:] + asks(more)
        asked += len(asks(more))
        clone.validate()
        assert len(flying) <= CREDIT
    assert asked == 8 and known(clone) == dict.fromkeys(range(9), SEALED)


def test_a_gap_keeps_the_old_generation_until_the_swap() -> None:
    clone = whole_clone((1, SEALED))
    effects = clone.delta(E1, 12, delta((2, SEALED)), 1.0, 0.3)
    assert Wanted(SyncReason.GAP) in effects and not asks(effects)
    assert known(clone) == {1: SEALED, 2: SEALED} and clone.whole and clone.syncing
    assert clone.tick(1.29, 0.0) == []
    [ask] = asks(clone.tick(1.3, 0.0))
    assert clone.chunk(chunk(ask, 1, 12, (2, SEALED)), 1.3, 0.0) == [Swapped(False)]
    assert known(clone) == {2: SEALED}


def test_a_lost_tail_is_noticed_by_the_beat() -> None:
    clone = whole_clone((1, SEALED))
    assert clone.shows(E1, 10, beat((1, SEALED)), 0.5, 0.0) == []
    assert Wanted(SyncReason.GAP) in clone.shows(E1, 11, beat(), 1.0, 0.0)


def test_a_gap_above_the_snapshots_head_begins_it_anew() -> None:
    clone = new_clone()
    [first] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    [second] = asks(clone.chunk(chunk(first, 2, 10, (1, SEALED)), 0.0, 0.0))
    effects = clone.delta(E1, 13, delta((5, SEALED)), 0.1, 0.0)
    assert Wanted(SyncReason.GAP) in effects
    [again] = asks(effects)
    assert clone.chunk(chunk(second, 2, 10, (2, SEALED)), 0.2, 0.0) == [], "the old snapshot is over"
    clone.chunk(chunk(again, 1, 13, (5, SEALED)), 0.2, 0.0)
    assert known(clone) == {5: SEALED}


def test_a_gap_before_the_snapshot_began_needs_no_other() -> None:
    clone = new_clone()
    [ask] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    assert [type(effect) for effect in clone.delta(E1, 13, delta((5, SEALED)), 0.1, 0.0)] == [Applied]
    clone.chunk(chunk(ask, 1, 12, (1, SEALED)), 0.2, 0.0)
    assert known(clone) == {1: SEALED, 5: SEALED} and not clone.syncing


def test_a_snapshot_from_before_the_gap_is_not_enough() -> None:
    clone = new_clone()
    [ask] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    clone.delta(E1, 13, delta((5, SEALED)), 0.1, 0.0)
    effects = clone.chunk(chunk(ask, 1, 11, (1, SEALED)), 0.2, 0.0)
    assert Wanted(SyncReason.GAP) in effects and not clone.whole


def test_digest_is_compared_only_at_equal_seq() -> None:
    clone = whole_clone((1, SEALED))
    assert clone.shows(E1, 9, beat(), 0.0, 0.0) == []
    assert clone.shows(E1, 10, None, 0.0, 0.0) == []
    assert Wanted(SyncReason.DIGEST) in clone.shows(E1, 10, beat((1, PENDING)), 0.0, 0.2)
    assert known(clone) == {1: SEALED} and clone.whole
    assert clone.shows(E1, 10, beat(), 0.1, 0.0) == [], "a snapshot is wanted already"


def test_a_new_epoch_voids_at_once() -> None:
    clone = whole_clone((1, SEALED))
    effects = clone.delta(E2, 1, delta((2, SEALED)), 1.0, 0.5)
    assert effects[:2] == [Voided(E1), Wanted(SyncReason.NEW_EPOCH)]
    assert asks(effects), "a new epoch does not wait for the jitter"
    assert known(clone) == {2: SEALED} and not clone.whole and clone.epoch == E2


def test_meeting_a_new_epoch_voids_before_any_event() -> None:
    clone = whole_clone((1, SEALED))
    assert clone.meet(E2) == [Voided(E1)]
    assert known(clone) == {} and clone.epoch == E2 and not clone.syncing


def test_an_epoch_left_behind_is_never_accepted_again() -> None:
    clone = whole_clone(epoch=1)
    for epoch in range(2, REMEMBERED_EPOCHS + 2):
        clone.meet(epoch)
    for epoch in range(1, REMEMBERED_EPOCHS + 1):
        assert clone.delta(epoch, 11, delta((9, SEALED)), 0.0, 0.0) == []
        assert clone.shows(epoch, 12, None, 0.0, 0.0) == []
        assert clone.meet(epoch) == []
    assert clone.epoch == REMEMBERED_EPOCHS + 1 and known(clone) == {}


def test_chunks_of_an_old_epoch_do_not_count() -> None:
    clone = new_clone()
    [old] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    [new] = asks(clone.shows(E2, 0, None, 0.0, 0.0))
    assert clone.chunk(chunk(old, 1, 10, (1, SEALED)), 0.0, 0.0) == []
    assert (new.epoch, old.epoch) == (E2, E1)
    clone.chunk(chunk(new, 1, 0), 0.0, 0.0)
    assert clone.whole and known(clone) == {}


def test_a_late_chunk_begins_the_snapshot_anew_and_later_each_time() -> None:
    clone = new_clone()
    asks(clone.shows(E1, 10, None, 0.0, 0.0))
    assert clone.tick(CHUNK_S - 0.01, 0.0) == []
    assert clone.tick(CHUNK_S, 0.2) == [Wanted(SyncReason.TIMEOUT)]
    first = clone.next_due()
    assert first is not None and first > CHUNK_S + 0.2
    [ask] = asks(clone.tick(first, 0.0))
    assert clone.failed(ask.sync.sync_id, first, 0.2) == [Wanted(SyncReason.REFUSED)]
    second = clone.next_due()
    assert second is not None and second - first > first - CHUNK_S
    assert clone.failed(ask.sync.sync_id, first, 0.0) == [], "that snapshot is over already"


def test_deltas_seen_while_a_snapshot_failed_are_not_lost() -> None:
    clone = new_clone()
    [ask] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    clone.delta(E1, 11, delta((1, SEALED)), 0.0, 0.0)
    clone.failed(ask.sync.sync_id, 0.0, 0.0)
    clone.delta(E1, 12, delta((2, SEALED)), 0.0, 0.0)
    [again] = asks(clone.tick(5.0, 0.0))
    clone.delta(E1, 13, delta((3, SEALED)), 5.0, 0.0)
    clone.chunk(chunk(again, 1, 12, (1, SEALED), (2, SEALED)), 5.0, 0.0)
    assert known(clone) == {1: SEALED, 2: SEALED, 3: SEALED}


def test_a_snapshot_from_before_what_was_seen_when_it_was_asked_for_is_not_taken() -> None:
    clone = new_clone()
    [ask] = asks(clone.shows(E1, 10, None, 0.0, 0.0))
    assert clone.chunk(chunk(ask, 1, 9), 0.0, 0.5) == [Wanted(SyncReason.GAP)]


def test_a_duplicate_delta_and_a_duplicate_chunk_change_nothing() -> None:
    clone = whole_clone((1, SEALED))
    clone.delta(E1, 11, delta((1, GONE)), 0.0, 0.0)
    assert clone.delta(E1, 11, delta((1, SEALED)), 0.0, 0.0) == []
    assert known(clone) == {}
    other = new_clone()
    [first] = asks(other.shows(E1, 1, None, 0.0, 0.0))
    [second] = asks(other.chunk(chunk(first, 2, 1, (1, SEALED)), 0.0, 0.0))
    assert other.chunk(chunk(first, 2, 1, (1, SEALED)), 0.0, 0.0) == []
    assert not other.whole
    other.chunk(chunk(second, 2, 1), 0.0, 0.0)
    assert known(other) == {1: SEALED}


def test_chunks_that_contradict_each_other_begin_the_snapshot_anew() -> None:
    clone = new_clone()
    [first] = asks(clone.shows(E1, 1, None, 0.0, 0.0))
    [second] = asks(clone.chunk(chunk(first, 2, 1, (1, SEALED)), 0.0, 0.0))
    assert clone.chunk(chunk(second, 2, 5, (2, SEALED)), 0.0, 0.0) == [Wanted(SyncReason.REFUSED)]
    assert not clone.whole


def test_an_unknown_kind_counts_as_seen() -> None:
    clone = whole_clone((1, SEALED))
    assert clone.delta(E1, 11, None, 0.0, 0.0) == []
    assert [type(effect) for effect in clone.delta(E1, 12, delta((2, SEALED)), 0.0, 0.0)] == [Applied]
    assert not clone.syncing


def test_leaving_remembers_the_epoch() -> None:
    clone = whole_clone((1, SEALED))
    assert clone.leave(for_good=True) == [Voided(E1)]
    assert clone.meet(E1) == [] and clone.epoch == 0
    assert clone.leave(for_good=True) == []


def test_a_silent_life_is_not_remembered_as_left() -> None:
    clone = whole_clone((1, SEALED))
    assert clone.leave(for_good=False) == [Voided(E1)]
    clone.meet(E1)
    assert clone.epoch == E1 and known(clone) == {}


def test_a_digest_that_no_snapshot_cures_is_asked_about_less_and_less() -> None:
    clone = whole_clone((1, SEALED))
    now, pauses = 0.0, []
    for _ in range(7):
        effects = clone.shows(E1, 10, beat((2, SEALED)), now, 0.0)
        begun = now
        while not (asked := asks(effects)):
            now += 0.05
            effects = clone.tick(now, 0.0)
        pauses.append(now - begun)
        clone.chunk(chunk(asked[0], 1, 10, (1, SEALED)), now, 0.0)
    assert pauses[0] == 0.0 and pauses == sorted(pauses) and 1.9 < pauses[-1] < 2.1
    clone.shows(E1, 10, beat((1, SEALED)), now, 0.0)
    assert asks(clone.shows(E1, 10, beat((2, SEALED)), now, 0.0)), "an agreement in between counts from the start"
