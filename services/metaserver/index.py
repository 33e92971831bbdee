"""Who holds which key, over all nodes: one entry per key, whoever holds it. Pure.

    key ─naming─▶ name (62 bits) ─table─▶ number of a set ─▶ ((generation, entry), …)    sets are shared by all keys with the same

A generation is one copy of one tier's catalogue (common/bus/clone.py): the live one, the one that a snapshot fills beside it, and
those that are over. Whether a generation counts is a flag of the generation: a swap or a node's end flips it and touches no key.
What it leaves in the table is swept out in slices (`work`), so nobody waits for it; the same holds for a table that grows.

A name stands for its key. Among five million keys two share one with a chance of 3 in a million, and then a hint is wrong,
which costs a miss (docs/architecture.md rule 6); two of one tier make its digest differ, so that it is copied again, with the
pauses of a resync, until one of them leaves. Whole keys would cost 130 bytes each, names cost 15 to 45.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
from pegaflow.common.wire.digest import DIGEST_BYTES, DIGEST_MOD, entry_tail, tail_digests
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, CatalogueBeat
from pegaflow.services.metaserver.naming import Naming
from pegaflow.services.metaserver.table import Names, Table, Values

Rows = tuple[tuple[int, int], ...]

FULL: Final = 0.8
EARLY: Final = 0.65  # from here on the next table is prepared
_SETS_STEP: Final = 1 << 12
_SPARE_SETS: Final = 1 << 12
_MAX_SPILLED: Final = 64


class _Move(NamedTuple):
    """What an entry does to a key of one set: the set it goes to, and both shares of the digest."""

    number: int
    old: int
    minus: bytes
    plus: bytes


class IndexGeneration:
    """One copy of `node`'s catalogue in the index (see `pegaflow.common.bus.clone.Generation`)."""

    def __init__(self, index: Index, number: int, node: str) -> None:
        self._index, self.number, self.node = index, number, node
        self.counts = [0] * 256
        self.is_live = False
        self.total = 0  # sum of digests, reduced only when it is compared
        self.moves: dict[tuple[int, int], _Move] = {}

    def put(self, keys: Collection[bytes], entries: Collection[int]) -> None:
        self._index.put(self, keys, entries)

    def entries_of(self, keys: Collection[bytes]) -> list[int]:
        numbers, counts = self._index.sets_of(keys)
        entries = (dict(self._index.rows(number)).get(self.number, 0) for number in numbers)
        return [entry for entry, count in zip(entries, counts, strict=True) for _ in range(count)]

    @property
    def digest(self) -> bytes:
        return (self.total % DIGEST_MOD).to_bytes(DIGEST_BYTES, "little")

    def live(self) -> None:
        self.is_live = True

    def void(self) -> None:
        self.is_live = False
        self._index.drop(self)

    def agrees(self, beat: CatalogueBeat) -> bool:
        return beat.digest == self.digest and beat.pending == self.counts[PENDING] and beat.sealed == self.counts[SEALED]

    def validate(self) -> None:
        assert self.counts[GONE] == 0 and min(self.counts) >= 0


class _Sweep:
    """A walk over all sets, then all slots, then all sets again. `mapping`: the set that takes a set's place."""

    def __init__(self) -> None:
        self.mapping = np.zeros(0, np.uint32)
        self.used = np.zeros(0, np.bool_)
        self.handed: set[int] = set()
        self.slot = 0
        self.freed = 1  # set 0 is the empty one


class Index:
    """`work` is to be called again and again while `busy`."""

    def __init__(self, buckets: int = 1 << 10, step: int = 1 << 16) -> None:
        """`buckets`: of 8 slots, the least there are; `step`: slots per step of work, the default takes about 1 ms."""
        self._least, self._slots_step = buckets, step
        self._naming = Naming()
        self._table = Table(buckets)
        self._next: Table | None = None  # allocated, but the kernel has not given all of it yet
        self._touched = 0
        self._outgrown: Table | None = None
        self._moved = 0
        self._sets: list[Rows] = [()]
        self._numbers: dict[Rows, int] = {(): 0}
        self._free: list[int] = []
        self._spare = _SPARE_SETS
        self._ids = itertools.count(1)
        self.generations: dict[int, IndexGeneration] = {}
        self._left = False  # a generation has ended since the last sweep began
        self._sweep: _Sweep | None = None

    def generation(self, node: str) -> IndexGeneration:
        """A new, empty one; nobody sees it before its `live`."""
        made = IndexGeneration(self, next(self._ids), node)
        self.generations[made.number] = made
        return made

    def drop(self, generation: IndexGeneration) -> None:
        if self.generations.pop(generation.number, None) is not None:
            generation.moves.clear()
            self._left = self._left or any(generation.counts)

    # --- looking -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Keys, those that only ended generations hold included."""
        return self._table.count + (self._outgrown.count if self._outgrown is not None else 0)

    def sets_of(self, keys: Collection[bytes]) -> tuple[list[int], list[int]]:
        """The sets of the keys as numbers, 0 where nobody has it, and how many keys in a row have each."""
        if not keys:
            return [], []
        values = self._values(self._naming.of(keys))
        column, count = values.tobytes(), len(values)
        if column == column[: values.itemsize] * count:  # PERF: mostly, and much cheaper to see than by numpy
            return [values.item(0)], [count]
        ends = (values[1:] != values[:-1]).nonzero()[0]
        starts = np.concatenate(([0], ends + 1))
        return values[starts].tolist(), np.diff(starts, append=count).tolist()

    def rows(self, number: int) -> Rows:
        """A set: (number of a generation, entry), of generations that may have ended."""
        return self._sets[number]

    def _values(self, names: Names) -> Values:
        values = self._table.get(names)
        if self._outgrown is not None:
            missing = values == 0
            if missing.any():
                values[missing] = self._outgrown.get(names[missing])
        return values

    # --- changing ----------------------------------------------------------------------------------------------------

    def put(self, generation: IndexGeneration, keys: Collection[bytes], entries: Collection[int]) -> None:
        """See `Generation.put`. Of a generation that has ended: nothing."""
        if not keys or generation.number not in self.generations:
            return
        names = self._naming.of(keys)
        before = self._values(names)
        entries, olds = list(entries), before.tolist()
        if olds.count(olds[0]) == entries.count(entries[0]) == len(entries):
            number = self._do_one(generation, keys, olds[0], entries[0])
            if number != olds[0]:
                self._store(names, np.full(len(olds), number, np.uint32))
            return
        values = self._do_each(generation, keys, olds, entries)
        changed = values != before
        if changed.any():
            self._store(names[changed], values[changed])

    def _do_one(self, generation: IndexGeneration, keys: Collection[bytes], old: int, entry: int) -> int:
        """PERF: mostly many keys make the same move, and without a step of Python per key that costs a quarter."""
        move = generation.moves.get((old, entry)) or self._move(generation, old, entry)
        if move.minus:
            generation.total -= tail_digests(keys, itertools.repeat(move.minus))
            generation.counts[move.old & 0xFF] -= len(keys)
        if move.plus:
            generation.total += tail_digests(keys, itertools.repeat(move.plus))
            generation.counts[entry & 0xFF] += len(keys)
        return move.number

    def _do_each(self, generation: IndexGeneration, keys: Collection[bytes], olds: list[int], entries: list[int]) -> Values:
        moves, counts, after = generation.moves, generation.counts, []
        minus: list[bytes] = []
        plus: list[bytes] = []
        for old, entry in zip(olds, entries, strict=True):
            move = moves.get((old, entry)) or self._move(generation, old, entry)
            after.append(move.number)
            minus.append(move.minus)
            plus.append(move.plus)
            counts[move.old & 0xFF] -= bool(move.minus)
            counts[entry & 0xFF] += bool(move.plus)
        generation.total -= tail_digests(itertools.compress(keys, minus), filter(None, minus))
        generation.total += tail_digests(itertools.compress(keys, plus), filter(None, plus))
        return np.array(after, np.uint32)

    def _move(self, generation: IndexGeneration, number: int, entry: int) -> _Move:
        rows = self._sets[number]
        old = dict(rows).get(generation.number, 0)
        kept = [row for row in rows if row[0] != generation.number and row[0] in self.generations]
        gone = entry & 0xFF == GONE
        new = kept if gone else sorted([*kept, (generation.number, entry)])
        move = _Move(self._number(tuple(new)), old, _tail(old) if old else b"", b"" if gone else _tail(entry))
        generation.moves[number, entry] = move
        return move

    def _number(self, rows: Rows) -> int:
        number = self._numbers.get(rows)
        if number is None:
            if self._free and self._sweep is None:
                number = self._free.pop()
                self._sets[number] = rows
            else:  # a number that a sweep has seen must not change its meaning before the sweep has ended
                number = len(self._sets)
                self._sets.append(rows)
            self._numbers[rows] = number
        if self._sweep is not None:
            self._sweep.handed.add(number)
        return number

    def _store(self, names: Names, values: Values) -> None:
        here = self._table.change(names, values)
        names, values = names[~here], values[~here]
        if self._outgrown is not None and len(names):
            here = self._outgrown.change(names, values)
            names, values = names[~here], values[~here]
        new = values != 0
        names, values = names[new], values[new]
        if not len(names):
            return
        # Both end long before they have to: the next table has all its memory, and the old one is empty.
        if self._next is not None:
            self._touch(max(1024, 16 * len(names)))
        if self._outgrown is not None:
            self._migrate(max(256, 8 * len(names)))
        wanted = len(self) + len(names)
        if wanted > FULL * self._table.slots or self._table.spilled > _MAX_SPILLED:
            while self._outgrown is not None:
                self._migrate(self._slots_step)
            if self._next is None or wanted > EARLY * self._next.slots:
                self._prepare(wanted)
            self._switch()
        elif self._next is None and self._outgrown is None and wanted > EARLY * self._table.slots:
            self._prepare(wanted)
        self._table.insert(names, values)

    # --- work --------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return (
            self._outgrown is not None or self._next is not None or self._sweep is not None or self._left or self._too_many_sets()
        )

    def work(self) -> None:
        """One step, about a millisecond."""
        if self._outgrown is not None:
            self._migrate(self._slots_step // 4)
        elif self._next is not None:
            self._touch(self._slots_step)
        elif self._sweep is not None:
            self._step(self._sweep)
        elif self._left or self._too_many_sets():
            self._left = False
            self._sweep = _Sweep()
            self._forget_moves()

    def _too_many_sets(self) -> bool:
        return len(self._numbers) > self._spare

    def _forget_moves(self) -> None:
        for generation in self.generations.values():
            generation.moves.clear()

    def _prepare(self, count: int) -> None:
        """A table for twice as many keys. Its memory is touched bit by bit: to get it from the kernel takes tens of ms."""
        buckets = self._least
        while 2 * count > FULL * buckets * 8:
            buckets *= 2
        self._next, self._touched = Table(buckets), 0

    def _touch(self, slots: int) -> None:
        assert self._next is not None
        self._next.touch(self._touched, self._touched + slots)
        self._touched += slots
        if self._touched >= self._next.slots and self._outgrown is None:
            self._switch()

    def _switch(self) -> None:
        """The next table takes over and is filled bit by bit; until that has ended both are looked at."""
        assert self._next is not None and self._outgrown is None
        self._outgrown, self._moved = self._table, 0
        self._table, self._next = self._next, None
        if self._sweep is not None:
            self._sweep.slot = 0

    def _migrate(self, slots: int) -> None:
        old = self._outgrown
        assert old is not None
        if old.spilled:
            self._table.insert(*old.take_spilled())
        self._table.insert(*old.take(self._moved, self._moved + slots))
        self._moved += slots
        if self._moved >= old.slots:
            self._outgrown = None

    def _step(self, sweep: _Sweep) -> None:
        mapped = len(sweep.mapping)
        if mapped < len(self._sets):
            numbers = range(mapped, min(mapped + _SETS_STEP, len(self._sets)))
            sweep.mapping = np.concatenate([sweep.mapping, np.array([self._without_ended(n) for n in numbers], np.uint32)])
            sweep.used = np.concatenate([sweep.used, np.zeros(len(numbers), np.bool_)])
        elif sweep.slot < self._table.slots:
            if not sweep.slot:
                self._table.rewrite_spilled(sweep.mapping)
                sweep.used[self._table.spill()[1]] = True
            stop = sweep.slot + self._slots_step
            self._table.rewrite(sweep.slot, stop, sweep.mapping)
            sweep.used[self._table.part(sweep.slot, stop)[1]] = True
            sweep.slot = stop
        elif sweep.freed < len(sweep.used):
            stop = min(sweep.freed + _SETS_STEP, len(sweep.used))
            for number in range(sweep.freed, stop):
                rows = self._sets[number]
                if rows and not sweep.used[number] and number not in sweep.handed:
                    del self._numbers[rows]
                    self._sets[number] = ()
                    self._free.append(number)
            sweep.freed = stop
        else:
            self._sweep = None
            self._forget_moves()
            self._spare = 2 * len(self._numbers) + _SPARE_SETS
            if self._table.buckets > self._least and self._table.count < self._table.slots // 8:
                self._prepare(self._table.count)

    def _without_ended(self, number: int) -> int:
        rows = self._sets[number]
        kept = tuple(row for row in rows if row[0] in self.generations)
        return number if len(kept) == len(rows) else self._number(kept)

    # --- checks ------------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        found: dict[int, list[int]] = {number: [0] * 256 for number in self.generations}
        tables = [table for table in (self._table, self._outgrown) if table is not None]
        for table in tables:
            table.validate()
            for number in itertools.chain(table.part(0, table.slots)[1].tolist(), table.spill()[1].tolist()):
                assert self._sets[number], "a key of a set that was freed"
                for generation, entry in self._sets[number]:
                    if generation in found:
                        found[generation][entry & 0xFF] += 1
        for number, generation in self.generations.items():
            assert generation.counts == found[number]
        assert all(self._sets[number] == rows for rows, number in self._numbers.items())
        assert not any(self._sets[number] for number in self._free)


def _tail(entry: int) -> bytes:
    return entry_tail(entry & 0xFF, entry >> 8 & 0xFF, entry >> 16)
