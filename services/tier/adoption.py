"""Adoption, pure: what an earlier life of the tier left in the pool, slab by slab (docs/protocol.md 1.4-1.8).

    sealed, all shards of one page ──▶ a page that is not verified yet     granted ──▶ held until its writer is quiet
    reading, quarantined ──▶ free: that life's mover is gone               torn    ──▶ held until all old members are quiet

A writer is quiet when it has attached to this life (it has joined its copies before that) or is proven dead by its lock. A slab
whose cut or entries contradict each other stays out of use as a whole until all old members are quiet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pegaflow.common.locks import FOREIGN_S
from pegaflow.common.slot_table import NO_CHECKSUM, Row, SlotEntry, SlotState
from pegaflow.common.wire.messages.inspection import Step
from pegaflow.services.tier.commands import Command, Log
from pegaflow.services.tier.fetches import PIN_TTL_S
from pegaflow.services.tier.leases import MARGIN_S
from pegaflow.services.tier.page import Page, PageState, granules
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.pins import MAX_PIN_TTL_S

KEEP_S = PIN_TTL_S + MARGIN_S
"""For so long may readers be on their way if nobody has noted until when: pages that they pinned stay where they are."""
MOST_S = MAX_PIN_TTL_S + MARGIN_S
"""No pin lasts longer, whatever was noted."""
SCAN_S = 1.0
"""For so long no adopted page goes, so that the oldest of all goes first and not the oldest of those found by then."""
ROWS = 512
"""Slots taken over in one event."""
ANYBODY = 0
"""In place of a holder: whoever of the old members is not quiet may write here."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What a life finds when it begins, at time `at`; generations of earlier lives are below `floor`.

    `readers_until`: other tiers that were told to read the pool may do so until then.
    `slabs`: first granule → slot size, 0 if doubtful; `backed` granules; `held` and `dead`: members of earlier lives whose locks
    were held, or free (`sessions.holder_word`).
    """

    floor: int = 0
    at: float = 0.0
    slabs: Mapping[int, int] = field(default_factory=dict)
    backed: int = 0
    held: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    readers_until: float = 0.0


def readers_until(noted: float | None, now: float) -> float:
    """How long readers of the life before may read, by what it has noted (`SlotTable.readers_until`)."""
    return now + KEEP_S if noted is None else min(noted, now + MOST_S)


class Adoption:
    """The slots of earlier lives, until each is a page of this one or free."""

    def __init__(self, pages: Pages, out: list[Command], counts: dict[str, int], remains: Remains) -> None:
        self._pages, self._out, self._counts = pages, out, counts
        now = remains.at
        self._until = max(remains.readers_until, now + SCAN_S)
        self._new: list[Page] = []
        self._rows: deque[Row] = deque()  # of slabs that were told of, not taken over yet
        self._all_told = False
        self.unscanned = set(remains.slabs)
        self._parts: dict[tuple[bytes, int, int, int], dict[int, Row]] = {}  # page → shard → where it was found
        self._held: dict[int, set[int]] = {}  # who may write → slots
        self._doubtful: dict[int, int] = {}  # slabs out of use as a whole
        self._not_quiet = set(remains.held)
        self._dead = set(remains.dead)
        self._quiet_at = dict.fromkeys(remains.dead, now + FOREIGN_S)  # where a device may go on for a while
        self._all_quiet_at = now + FOREIGN_S
        pages.allocator.grow(remains.backed)  # also where no slab was cut: memory that is there is not announced again
        pages.allocator.withhold(remains.slabs)

    def going_on(self) -> bool:
        """There may be pages that nobody here knows yet."""
        return bool(self.unscanned or self._parts or self._rows)

    @property
    def behind(self) -> bool:
        """There are slots left of the slabs that it was told of: `resume` takes more of them over."""
        return bool(self._rows)

    # --- the scan ----------------------------------------------------------------------------------------------------

    def slab(self, first: int, rows: Sequence[Row], size: int) -> None:
        """One slab of an earlier life with its slots that are not free. Nothing else of this tier touches it before."""
        self.unscanned.remove(first)
        if not size or any(row.entry is not None and granules(row.entry.length) != size for row in rows):
            self._doubtful[first] = size
            self._counts["refused_entries"] += max(1, len(rows))
            return
        if not rows:
            self._pages.retire(first, self._pages.allocator.starts(first, size))
            return
        self._pages.allocator.adopt(first, size, [row.slot for row in rows])
        for row in rows:
            self._pages.hold(row.slot, size, row.generation)
        self._rows.extend(rows)
        if len(self._rows) == len(rows):  # else it is resumed anyway
            self.resume()

    def resume(self) -> None:
        """The next slots."""
        if not self._rows:
            return
        for _ in range(min(ROWS, len(self._rows))):
            self._take(self._rows.popleft())
        self._pages.space.hold(self._new, self._until)
        self._pages.chronicle.note(Step.ADOPTED, [page.key for page in self._new])
        self._new.clear()
        if not self._rows and self._all_told:
            self._end()

    def _take(self, row: Row) -> None:
        entry = row.entry
        if row.generation >> 63:
            self._counts["refused_entries"] += 1  # nothing could be above it: the slot stays out of use for this life
        elif entry is None:
            self._counts["refused_entries"] += 1
            self._wait(row.slot, ANYBODY)
        elif entry.state is SlotState.SEALED:
            self._part(row, entry)
        elif entry.state is SlotState.GRANTED:
            self._granted(row.slot, entry.holder)
        else:
            self._pages.let_go(row.slot)

    def _granted(self, slot: int, holder: int) -> None:
        word, device = holder & ~1, holder & 1
        if word in self._not_quiet:
            self._wait(slot, holder)
        elif word in self._dead and not device:
            self._pages.let_go(slot)
        elif word in self._quiet_at:
            self._wait(slot, holder)
        else:  # its lock file is gone, or it has attached again and this is not its word any more
            self._wait(slot, ANYBODY)

    def _wait(self, slot: int, holder: int) -> None:
        self._held.setdefault(holder, set()).add(slot)

    def _part(self, row: Row, entry: SlotEntry) -> None:
        if entry.shard >= entry.shards or len(entry.key) <= 16 or entry.checksum == NO_CHECKSUM:
            self._refuse(row.slot)
            return
        if entry.shards == 1:
            self._adopt([row])
            return
        name = (entry.key, entry.grant, entry.order, entry.shards)
        parts = self._parts.setdefault(name, {})
        if entry.shard in parts:
            self._refuse(row.slot)
            return
        parts[entry.shard] = row
        if len(parts) == entry.shards:
            del self._parts[name]
            self._adopt([parts[shard] for shard in range(entry.shards)])

    def _adopt(self, rows: Sequence[Row]) -> None:
        entries = [row.entry for row in rows if row.entry is not None]
        first = entries[0]
        page = Page(
            first.key, PageState.SEALED, [row.slot for row in rows], [row.generation for row in rows],
            tuple(entry.length for entry in entries),
        )  # fmt: skip
        page.rows, page.grant, page.order = first.rows, first.grant, first.order
        page.checksums = [entry.checksum for entry in entries]
        # Ages are 32-bit ranks of an orderly end, grants of any life are above them, turns of this life above these.
        page.used_at = first.age or first.grant
        for row in rows:
            self._pages.held.pop(row.slot)
        if len({entry.rows for entry in entries}) == 1 and self._pages.adopt(page, self._until):
            self._counts["adopted"] += 1
            self._counts["adopted_bytes"] += page.size
            self._new.append(page)
            return
        for row in rows:
            self._refuse(row.slot)

    def _refuse(self, slot: int) -> None:
        """Sealed, so nobody writes it; but not a page that can be served."""
        self._counts["refused_entries"] += 1
        self._pages.let_go(slot)

    def scanned(self) -> None:
        """That was the last slab."""
        self._all_told = True
        if not self._rows:
            self._end()

    def _end(self) -> None:
        """What is not whole by now will never be."""
        for parts in self._parts.values():
            for row in parts.values():
                self._refuse(row.slot)
        self._parts.clear()
        self._out.append(Log("adopted", self.view() | {name: self._counts[name] for name in ("adopted", "refused_entries")}))

    # --- who is quiet ------------------------------------------------------------------------------------------------

    def attached(self, holder: int, now: float) -> None:
        """An old member has attached to this life: it has joined its copies, so what it was granted before is free."""
        word = holder & ~1
        if word in self._not_quiet:
            self._not_quiet.discard(word)
            self._dead.add(word)
            self._quiet_at[word] = now
            self._all_quiet_at = max(self._all_quiet_at, now)
            self._free(word)
            self._free(word | 1)

    def lock_free(self, word: int, now: float) -> None:
        """An old member's lock is free: it is dead; a device may go on for it for a while (docs/protocol.md 1.3)."""
        if word in self._not_quiet:
            self._not_quiet.discard(word)
            self._dead.add(word)
            self._quiet_at[word] = now + FOREIGN_S
            self._all_quiet_at = max(self._all_quiet_at, now + FOREIGN_S)
            self._free(word)

    def tick(self, now: float) -> None:
        """Frees what waited for a device, or for everybody."""
        for holder in [holder for holder in self._held if holder & 1 and self._quiet_at.get(holder & ~1, now + 1) <= now]:
            self._free(holder)
        if self._not_quiet or now < self._all_quiet_at:
            return
        self._free(ANYBODY)
        for first, size in self._doubtful.items():
            self._pages.retire(first, self._pages.allocator.starts(first, size or 1))
        self._doubtful.clear()

    def _free(self, holder: int) -> None:
        slots = self._held.pop(holder, ())
        for slot in sorted(slots):
            self._pages.let_go(slot)
        if slots:
            self._counts["old_slots_freed"] += len(slots)
            self._out.append(Log("old_slots_freed", {"slots": len(slots), "waiting_for": self.waiting_for}))

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> int:
        """Old members that keep something out of use."""
        if ANYBODY in self._held or self._doubtful:
            return len(self._not_quiet)
        return len({holder & ~1 for holder in self._held} & self._not_quiet)

    def view(self) -> dict[str, Any]:
        """For the dump."""
        return {
            "waiting_for": self.waiting_for,
            "held_slots": sum(map(len, self._held.values())),
            "doubtful_slabs": len(self._doubtful),
            "unscanned_slabs": len(self.unscanned),
        }

    def validate(self) -> None:
        waiting = [slot for slots in self._held.values() for slot in slots]
        waiting += [row.slot for parts in self._parts.values() for row in parts.values()]
        waiting += [row.slot for row in self._rows]
        assert len(waiting) == len(set(waiting))
        assert set(waiting) <= set(self._pages.held)
        assert all(slots for slots in self._held.values())
