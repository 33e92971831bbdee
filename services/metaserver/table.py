"""A hash table of numbers in two flat columns, pure: name (64 bits) → value (32 bits, not 0).

    bucket   8 names (one cache line) | 8 values          a name lies in one of two buckets, or among the few spilled

The first bucket is in the left half of the table and follows from the lower half of the name, the other one from the upper half.

Everything is done for many names at once. PERF: that is what makes it worth its numpy: the cache misses of a thousand look-ups
overlap, and an entry costs 12 bytes of a slot instead of the 70 to 130 of a dictionary with its keys. Two choices of 8 slots each
fill to 9/10 before anything spills, and a removal just clears its slot: no chains, no tombstones.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Names = NDArray[np.uint64]
Values = NDArray[np.uint32]
Slots = NDArray[np.int64]
Buckets = NDArray[np.uint32]

SLOTS: Final = 8
LINE: Final = 64
FEW: Final = 8  # up to here a loop over names is faster than a dozen calls of numpy
EMPTY: Final = np.uint64(0)
ONE: Final = np.uint64(1)
LEFT: Final = (1 << 64) - 1 - (1 << 31)
RIGHT: Final = 1 << 63


class Table:
    """`buckets`: a power of two from 2 on. The caller keeps it below FULL of its slots; beyond, names spill.

    A name is any number `& LEFT | RIGHT`: then the highest bits of its halves are the numbers of its buckets.
    """

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        self._shift = np.uint32(33 - buckets.bit_length())
        # A bucket that straddles two cache lines would cost two misses.
        raw = np.zeros(buckets * SLOTS + LINE // 8, np.uint64)
        offset = -raw.ctypes.data % LINE // 8
        self._names = raw[offset : offset + buckets * SLOTS]
        self._rows = self._names.reshape(buckets, SLOTS)
        self._values = np.zeros(buckets * SLOTS, np.uint32)
        self._value_rows = self._values.reshape(buckets, SLOTS)
        self._name_at, self._value_at = memoryview(self._names.data), memoryview(self._values.data)
        self._spilled: dict[int, int] = {}
        self.count = 0

    @property
    def slots(self) -> int:
        return self.buckets * SLOTS

    @property
    def spilled(self) -> int:
        return len(self._spilled)

    def _two(self, names: Names) -> Buckets:
        """The two buckets of each name, one after the other: the lower half of a number comes first."""
        return names.view(np.uint32) >> self._shift

    def _places(self, names: Names, two: Buckets) -> NDArray[np.bool_]:
        """Per name its 16 places: where it is."""
        here: NDArray[np.bool_] = self._rows.take(two, axis=0).reshape(len(names), 2 * SLOTS) == names[:, None]
        return here

    def _find(self, names: Names) -> Slots:
        """The slot of each name, −1 where it has none."""
        two = self._two(names)
        hits = self._places(names, two).ravel().nonzero()[0]
        slots = np.full(len(names), -1, np.int64)
        slots[hits >> 4] = (two.take(hits >> 3).astype(np.int64) << 3) + (hits & 7)
        return slots

    def _buckets(self, name: int) -> tuple[int, int]:
        """As `_two`, for one."""
        shift = int(self._shift)
        return (name & 0xFFFFFFFF) >> shift, name >> 32 + shift

    def _seek(self, name: int) -> int:
        """As `_find`, for one."""
        for bucket in self._buckets(name):
            row = self._name_at[bucket * SLOTS : (bucket + 1) * SLOTS].tolist()
            if name in row:
                return bucket * SLOTS + row.index(name)
        return -1

    def get(self, names: Names) -> Values:
        """The value of each name, 0 where there is none."""
        if len(names) <= FEW:
            return np.array([self._get(name) for name in names.tolist()], np.uint32)
        two = self._two(names)
        here = self._places(names, two)
        found: Values = self._value_rows.take(two, axis=0).reshape(len(names), 2 * SLOTS)[here]
        if len(found) == len(names):  # a name stands in one place, and a name's two buckets are never the same
            return found
        values = np.zeros(len(names), np.uint32)
        values[here.any(axis=1)] = found
        if self._spilled:
            for i in np.flatnonzero(values == 0).tolist():
                values[i] = self._spilled.get(int(names[i]), 0)
        return values

    def _get(self, name: int) -> int:
        slot = self._seek(name)
        return self._value_at[slot] if slot >= 0 else self._spilled.get(name, 0)

    def change(self, names: Names, values: Values) -> NDArray[np.bool_]:
        """Sets the values of the names that are here, 0 removes; returns which were."""
        if len(names) <= FEW:
            return np.array([self._change(*row) for row in zip(names.tolist(), values.tolist(), strict=True)], np.bool_)
        slots = self._find(names)
        here = slots >= 0
        if here.any():
            mine, new = slots[here], values[here]
            self._values[mine] = new
            gone = mine[new == 0]
            self._names[gone] = EMPTY
            self.count -= len(gone)
        if self._spilled and not here.all():
            for i in np.flatnonzero(~here).tolist():
                name, value = int(names[i]), int(values[i])
                if name in self._spilled:
                    here[i] = True
                    self._change_spilled(name, value)
        return here

    def _change(self, name: int, value: int) -> bool:
        slot = self._seek(name)
        if slot < 0:
            if name not in self._spilled:
                return False
            self._change_spilled(name, value)
            return True
        self._value_at[slot] = value
        if not value:
            self._name_at[slot] = 0
            self.count -= 1
        return True

    def _change_spilled(self, name: int, value: int) -> None:
        if value:
            self._spilled[name] = value
        else:
            del self._spilled[name]
            self.count -= 1

    def insert(self, names: Names, values: Values) -> None:
        """Names that are not here yet, each once, with values other than 0."""
        self.count += len(names)
        if len(names) <= FEW:
            for name, value in zip(names.tolist(), values.tolist(), strict=True):
                self._insert(name, value)
            return
        while len(names):
            two = self._two(names)
            free = (self._rows.take(two, axis=0) == EMPTY).view(np.uint64).ravel()  # a byte per place, 1 where it is free
            room = np.bitwise_count(free)
            at = np.arange(0, len(two), 2) + (room[1::2] > room[::2])  # the emptier one
            chosen = free.take(at)
            fits = chosen != 0
            if not fits.all():
                self._spilled.update(zip(names[~fits].tolist(), values[~fits].tolist(), strict=True))
            place = np.bitwise_count((chosen & -chosen) - ONE) >> 3  # the first free one: as many bytes lie below its bit
            slots = (two.take(at).astype(np.int64) << 3) + place
            slots, names, values = slots[fits], names[fits], values[fits]
            # Several of them may want one slot: the last one wins it, the others try again.
            self._names[slots] = names
            self._values[slots] = values
            lost = self._names[slots] != names
            names, values = names[lost], values[lost]

    def _insert(self, name: int, value: int) -> None:
        two = self._buckets(name)
        rows = [self._name_at[bucket * SLOTS : (bucket + 1) * SLOTS].tolist() for bucket in two]
        choice = int(rows[1].count(0) > rows[0].count(0))  # the emptier one
        if 0 not in rows[choice]:
            self._spilled[name] = value
            return
        slot = two[choice] * SLOTS + rows[choice].index(0)
        self._name_at[slot], self._value_at[slot] = name, value

    def touch(self, start: int, stop: int) -> None:
        """Makes the kernel give the memory of these slots, which are empty."""
        self._names[start:stop] = EMPTY
        self._values[start:stop] = 0

    def part(self, start: int, stop: int) -> tuple[Names, Values]:
        """Names and values in these slots. The caller owns the copies."""
        values = self._values[start:stop]
        taken = values != 0
        return self._names[start:stop][taken], values[taken]

    def take(self, start: int, stop: int) -> tuple[Names, Values]:
        """As `part`, and they are not here any more."""
        names, values = self.part(start, stop)
        self._names[start:stop] = EMPTY
        self._values[start:stop] = 0
        self.count -= len(names)
        return names, values

    def take_spilled(self) -> tuple[Names, Values]:
        names, values = self.spill()
        self.count -= len(names)
        self._spilled.clear()
        return names, values

    def spill(self) -> tuple[Names, Values]:
        count = len(self._spilled)
        return np.fromiter(self._spilled, np.uint64, count), np.fromiter(self._spilled.values(), np.uint32, count)

    def rewrite(self, start: int, stop: int, mapping: Values) -> None:
        """Values in these slots become `mapping[value]`; 0 removes."""
        values = self._values[start:stop]
        new = mapping.take(values)
        gone = (new == 0) & (values != 0)
        self._names[start:stop][gone] = EMPTY
        self.count -= int(gone.sum())
        values[:] = new

    def rewrite_spilled(self, mapping: Values) -> None:
        kept = {name: int(mapping[value]) for name, value in self._spilled.items() if mapping[value]}
        self.count -= len(self._spilled) - len(kept)
        self._spilled = kept

    def validate(self) -> None:
        names, values = self.part(0, self.slots)
        assert ((self._values != 0) == (self._names != EMPTY)).all()
        assert self.count == len(names) + len(self._spilled)
        everything = np.concatenate([names, self.spill()[0]])
        assert len(np.unique(everything)) == len(everything), "a name stands there twice"
        assert (self.get(names) == values).all(), "a name outside its buckets"
