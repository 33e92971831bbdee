"""What a life takes over from the one before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from pegaflow.common.bus.events import session_topic
from pegaflow.common.locks import FOREIGN_S
from pegaflow.common.pool import GRANULE
from pegaflow.common.slot_table import Row, SlotEntry, SlotState
from pegaflow.common.wire.messages.catalogue import GONE, SEALED
from pegaflow.common.wire.messages.saves import GRANTED, HAVE, NO_SPACE
from pegaflow.common.wire.messages.saves import PENDING as ELSEWHERE
from pegaflow.common.wire.messages.transfer import Pin, Pinned, Unpin
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.adoption import KEEP_S, MOST_S, SCAN_S, Remains, readers_until
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.sessions import holder_word
from pegaflow.services.tier.state import TierState
from tier_script import EPOCH, Script, checksum, deltas, hits, key


def test_a_life_that_was_never_used_leaves_its_memory_to_the_next() -> None:
    """It has backed the pool and cut no slab. Nobody says "backed" again, because it is."""
    granules, numbers = 256, itertools.count(1)
    place = Place("a", 2, "", granules * GRANULE, "", "", "", "")
    tier = TierState(
        place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, remains=Remains(floor=1, at=1.0, backed=granules)
    )
    tier.handle(events.SlabsEnded(), 1.0)
    tier.validate()
    found = tier.dump()
    assert found["free_bytes"] == found["backed_bytes"] == granules * GRANULE


# --- entries of a life before, and what becomes of them ---------------------------------------------------------------

LIFE = 1 << 40
SLAB = 8
OLD = holder_word(b"old-rank" + b"-" * 8)


def found(
    slot: int, state: SlotState = SlotState.SEALED, number: int = 1, grant: int = 1, generation: int = 5, **changes: Any
) -> Row:
    fields: dict[str, Any] = {
        "shards": 1, "rows": 16, "length": GRANULE, "checksum": checksum(f"page {slot}"), "grant": LIFE + grant,
    }  # fmt: skip
    return Row(slot, LIFE + generation, SlotEntry(state, key(number), **(fields | changes)))


class Warm(Script):
    """A pool of 64 granules in slabs of 8; `slabs`: what a life before has left in each, one granule per slot."""

    def __init__(self, slabs: dict[int, list[Row]], held: Iterable[int] = (), **options: Any) -> None:
        super().__init__(64, shards=options.pop("shards", 1))
        sizes = options.pop("sizes", dict.fromkeys(slabs, 1))
        place, numbers = Place("a", EPOCH, "pool", 64 * GRANULE, "table", "i", "e", "c"), itertools.count(1)
        readers = self.now + options.pop("readers", 0.0)
        remains = Remains(2 * LIFE, self.now, sizes, 64, frozenset(held), frozenset(), readers)
        self.tier = TierState(place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, remains=remains, **options)
        self.tier.agent = Agent("a/77", b"blob", 4096)
        self.out: list[commands.Command] = []
        for first, rows in slabs.items():
            self.out += self.feed(events.SlabFound(first, sizes[first], rows))
        self.out += self.feed(events.SlabsEnded())

    def tick(self, seconds: float) -> list[commands.Command]:
        self.now += seconds
        return self.feed(events.Tick())

    @property
    def held(self) -> int:
        return len(self.tier.pages.held)


def tables(out: list[commands.Command]) -> dict[int, commands.Table]:
    return {command.slot: command for command in out if isinstance(command, commands.Table)}


def pinned(out: list[commands.Command]) -> list[list[int]]:
    return [list(c.message.positions) for c in out if isinstance(c, commands.Reply) and isinstance(c.message, Pinned)]


def test_a_sealed_page_is_announced_at_once_and_served_after_its_checksum_was_found_to_fit() -> None:
    warm = Warm({0: [found(0), found(1, number=2)]}).engine()
    assert deltas(warm.out) == [(key(1), SEALED), (key(2), SEALED)]
    assert warm.lookup([1, 2]) is None, "it waits"
    jobs = [*warm.tier.verifier.open]
    assert len(jobs) == 1, "all that the lookup needs, at once"
    out = warm.feed(events.Hashed(jobs[0], [checksum("page 0"), checksum("page 1")]))
    assert [(hit.full, list(hit.generations)) for hit in hits(out)] == [(2, [LIFE + 5, LIFE + 5])]
    assert deltas(out) == []


def test_a_page_with_other_bytes_is_dropped_and_its_slot_moves() -> None:
    warm = Warm({0: [found(0), found(1, number=2)]}).engine()
    warm.lookup([1, 2])
    out = warm.feed(events.Hashed(next(iter(warm.tier.verifier.open)), [checksum("page 0"), checksum("rot")]))
    assert [hit.full for hit in hits(out)] == [1]
    assert deltas(out) == [(key(2), GONE)]
    moved = [command for command in out if isinstance(command, commands.Table) and command.slot == 1]
    assert moved[0].generation > LIFE + 5, "whoever copies from it sees that"
    assert warm.tier.counts["adopted_bad"] == 1


def test_a_checksum_that_could_not_be_taken_speaks_for_nobody() -> None:
    warm = Warm({0: [found(0)]}).engine()
    warm.lookup([1])
    assert [hit.full for hit in hits(warm.feed(events.Hashed(next(iter(warm.tier.verifier.open)), None)))] == [0]


def test_have_is_not_said_of_a_page_that_nobody_has_verified() -> None:
    warm = Warm({0: [found(0)]}).engine()
    assert list(warm.intent([1]).statuses) == [ELSEWHERE]
    warm.feed(events.Hashed(next(iter(warm.tier.verifier.open)), [checksum("page 0")]))
    assert list(warm.intent([1]).statuses) == [HAVE]


def test_a_pin_waits_for_the_checksum_but_not_for_ever() -> None:
    warm = Warm({0: [found(0), found(1, number=2)]})
    assert warm.ask(Pin("b", [key(1)], 1, 1000)) is None
    out = warm.feed(events.Hashed(next(iter(warm.tier.verifier.open)), [checksum("page 0")]))
    assert pinned(out) == [[0]]
    assert warm.ask(Pin("b", [key(1), key(2)], 1, 1000)) is None
    out = warm.tick(1.0)
    assert pinned(out) == [[0]]


def test_shards_of_two_grants_are_no_page() -> None:
    rows = [found(0, shard=0, shards=2), found(1, shard=1, shards=2, grant=2), found(2, number=2, shard=1, shards=2)]
    warm = Warm({0: rows}, shards=2)
    assert warm.tier.dump()["pages"] == {} and warm.held == 0
    assert warm.tier.counts["refused_entries"] == 3
    assert tables(warm.out)[0].entry.state is SlotState.FREE


@pytest.mark.parametrize("changes", [{"checksum": bytes(16)}, {"shard": 1}, {"key": b"short"}], ids=["checksum", "shard", "key"])
def test_an_entry_that_makes_no_page_is_refused(changes: dict[str, Any]) -> None:
    row = found(0)
    assert row.entry is not None
    warm = Warm({0: [row._replace(entry=row.entry._replace(**changes))]})
    assert (warm.tier.dump()["pages"], warm.tier.counts["refused_entries"], warm.held) == ({}, 1, 0)


def test_one_key_is_taken_over_once() -> None:
    warm = Warm({0: [found(0), found(1, grant=2)]})
    assert warm.tier.dump()["pages"] == {"sealed": 1} and warm.tier.counts["refused_entries"] == 1


def test_what_a_mover_wrote_is_free_because_it_is_gone() -> None:
    warm = Warm({0: [found(0, SlotState.READING), found(1, SlotState.QUARANTINED)]})
    assert warm.held == 0 and warm.tier.dump()["free_bytes"] == 64 * GRANULE


def test_a_granted_slot_waits_for_its_writer_to_attach_or_die() -> None:
    for end in ("attach", "die"):
        warm = Warm({0: [found(0, SlotState.GRANTED, holder=OLD)]}, held={OLD})
        warm.tick(3600)
        assert warm.held == 1 and warm.tier.adoption.waiting_for == 1, "no time ends it"
        if end == "attach":
            warm.attach("p", "rank", nonce=b"old-rank" + b"-" * 8)
        else:
            warm.feed(events.LockFree(OLD))
        assert warm.held == 0 and warm.tier.adoption.waiting_for == 0
        assert warm.tier.dump()["free_bytes"] == 64 * GRANULE


def test_an_attach_that_is_refused_frees_nothing() -> None:
    warm = Warm({0: [found(0, SlotState.GRANTED, holder=OLD)]}, held={OLD})
    warm.attach("p", "rank", nonce=b"old-rank" + b"-" * 8, protocol=99)
    assert warm.held == 1


def test_a_slab_that_is_found_after_its_writer_was_quiet_is_free() -> None:
    warm = Warm({0: [found(0)]}, held={OLD}, sizes={0: 1, SLAB: 1})
    warm.attach("p", "rank", nonce=b"old-rank" + b"-" * 8)
    warm.feed(events.SlabFound(SLAB, 1, [found(SLAB, SlotState.GRANTED, 2, holder=OLD)]))
    assert warm.held == 0


def test_a_device_may_go_on_for_a_while_after_its_process() -> None:
    warm = Warm({0: [found(0, SlotState.GRANTED, holder=OLD | 1)]}, held={OLD})
    warm.feed(events.LockFree(OLD))
    warm.tick(FOREIGN_S - 0.1)
    assert warm.held == 1
    warm.tick(0.2)
    assert warm.held == 0


@pytest.mark.parametrize(
    "row", [Row(0, LIFE, None), found(0, SlotState.GRANTED, holder=OLD + 2), found(0, SlotState.GRANTED)],
    ids=["torn", "a writer without a lock file", "no writer"],
)  # fmt: skip
def test_a_doubtful_slot_waits_until_all_old_members_are_quiet(row: Row) -> None:
    warm = Warm({0: [row]}, held={OLD, 8})
    warm.feed(events.LockFree(OLD))
    warm.tick(3600)
    assert warm.held == 1
    warm.feed(events.LockFree(8))
    warm.tick(FOREIGN_S - 0.1)
    assert warm.held == 1
    warm.tick(0.2)
    assert warm.held == 0 and warm.tier.dump()["free_bytes"] == 64 * GRANULE


@pytest.mark.parametrize(("size", "length"), [(0, 1), (1, GRANULE + 1)], ids=["torn cut", "another size"])
def test_a_slab_that_contradicts_itself_is_out_of_use_as_a_whole(size: int, length: int) -> None:
    warm = Warm({0: [found(0, length=length), found(3, number=2)]}, held={OLD}, sizes={0: size}).engine()
    assert warm.tier.dump()["pages"] == {}
    assert warm.tier.dump()["free_bytes"] == (64 - SLAB) * GRANULE
    assert all(slot >= SLAB for slot in warm.intent(list(range(10, 80))).slots)
    warm.feed(events.LockFree(OLD))
    freed = tables(warm.tick(FOREIGN_S + 0.1))
    assert all(freed[slot].generation > 2 * LIFE for slot in range(SLAB))
    assert warm.tier.dump()["adoption"]["doubtful_slabs"] == 0


def test_a_slab_that_is_wholly_free_may_serve_another_size_and_old_readers_see_it() -> None:
    warm = Warm({0: []})
    assert {slot: table.generation > 2 * LIFE for slot, table in tables(warm.out).items()} == dict.fromkeys(range(SLAB), True)
    assert commands.Cut(0, 0) in warm.out


def test_a_generation_that_nothing_could_be_above_costs_its_slot() -> None:
    warm = Warm({0: [found(0)._replace(generation=(1 << 64) - 1, entry=None), found(1)]}).engine()
    warm.tick(3600)
    assert 0 not in warm.intent(list(range(10, 80))).slots and warm.held == 1


def test_generations_of_a_life_are_above_those_of_the_one_before() -> None:
    warm = Warm({0: [found(0, generation=9)]}).engine()
    grant = warm.intent(list(range(10, 14)))
    assert min(grant.generations) > 2 * LIFE > LIFE + 9
    assert grant.grant > 2 * LIFE, "nor is a grant's number ever used again"


def test_adopted_pages_stay_for_those_who_pinned_them_and_go_in_the_order_of_their_use() -> None:
    rows = [found(slot, number=slot + 1, grant=50 - slot) for slot in range(SLAB)]
    rows[3] = found(3, number=4, grant=9, age=1)  # an orderly end left an age; the others have that of their saving
    slabs = {first: [found(first + i, number=999 + first + i, grant=100) for i in range(SLAB)] for first in range(SLAB, 64, SLAB)}
    warm = Warm({0: rows, **slabs}, readers=5.0).engine()
    assert list(warm.intent([100]).statuses) == [NO_SPACE]
    warm.tick(4.9)
    assert list(warm.intent([100]).statuses) == [NO_SPACE]
    warm.tick(0.2)
    went = []
    for number in range(101, 104):
        before = warm.sealed()
        assert list(warm.intent([number]).statuses) == [GRANTED]
        went += sorted(before - warm.sealed())
    assert went == [4, 8, 7]


def test_pages_that_nobody_pinned_go_as_soon_as_all_are_known() -> None:
    warm = Warm({first: [found(first + i, number=first + i) for i in range(SLAB)] for first in range(0, 64, SLAB)}).engine()
    assert list(warm.intent([100]).statuses) == [NO_SPACE]
    warm.tick(SCAN_S + 0.1)
    assert list(warm.intent([100]).statuses) == [GRANTED]


@pytest.mark.parametrize(("noted", "expected"), [(None, 100 + KEEP_S), (90.0, 90.0), (103.0, 103.0), (1e9, 100 + MOST_S)])
def test_how_long_readers_of_the_life_before_may_read(noted: float | None, expected: float) -> None:
    assert readers_until(noted, 100.0) == expected


def test_how_long_readers_may_read_is_noted_before_they_are_told_to_and_never_less_than_those_of_the_life_before_may() -> None:
    warm = Warm({}, readers=3.0)
    begun = warm.now
    warm.engine().save([1, 2])

    def noted(out: list[commands.Command]) -> list[float]:
        return [round(command.at - begun, 6) for command in out if isinstance(command, commands.ReadersUntil)]

    out = warm.feed(events.Asked("b", Pin("b", [key(1)], 1, 4000)))
    kinds = [type(command) for command in out]
    assert noted(out) == [5.0] and kinds.index(commands.ReadersUntil) < kinds.index(commands.Reply), "with the margin"
    first = pin_of(out)
    warm.now += 0.5
    out = warm.feed(events.Asked("c", Pin("c", [key(2)], 1, 1000)))
    assert noted(out) == [], "the first one lasts longer"
    assert noted(warm.feed(events.Asked("b", Unpin(first)))) == [], "the second is still open"
    assert noted(warm.feed(events.Asked("c", Unpin(pin_of(out))))) == [3.0], "as long as the life before has promised"
    assert noted(warm.feed(events.Asked("d", Pin("d", [key(9)], 1, 4000)))) == [], "nothing there, nothing pinned"


def pin_of(out: list[commands.Command]) -> int:
    return next(c.message.lease for c in out if isinstance(c, commands.Reply) and isinstance(c.message, Pinned))
