"""Locates that wait, pure: answered by what happens, not by asking again and again."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pegaflow.common.wire.messages.catalogue import Locate

MAX_WAITERS = 4096


class Waiter:
    """One locate without an answer. `request` is what the shell answers, `wanted` the keys that can change the answer."""

    __slots__ = ("deadline", "message", "number", "request", "wanted")

    def __init__(self, number: int, request: Any, message: Locate, deadline: float) -> None:
        self.number, self.request, self.message, self.deadline = number, request, message, deadline
        self.wanted: frozenset[bytes] = frozenset()


class Waiters:
    """Found by the keys they want: those up to the first hole, all of them pending."""

    def __init__(self) -> None:
        self._open: dict[int, Waiter] = {}
        self._by_key: dict[bytes, dict[int, Waiter]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._numbers = itertools.count(1)
        self._unsettled: OrderedDict[int, Waiter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, waiter: Waiter) -> bool:
        return self._open.get(waiter.number) is waiter

    @property
    def full(self) -> bool:
        return len(self._open) >= MAX_WAITERS

    def add(self, request: Any, message: Locate, wanted: Sequence[bytes], deadline: float) -> None:
        waiter = Waiter(next(self._numbers), request, message, deadline)
        self._open[waiter.number] = waiter
        self.want(waiter, wanted)
        heapq.heappush(self._deadlines, (deadline, waiter.number))

    def want(self, waiter: Waiter, wanted: Iterable[bytes]) -> None:
        """From now on these keys concern it, and no others."""
        new = frozenset(wanted)
        if new == waiter.wanted:
            return
        self._drop_keys(waiter, waiter.wanted - new)
        for key in new - waiter.wanted:
            self._by_key.setdefault(key, {})[waiter.number] = waiter
        waiter.wanted = new

    def _drop_keys(self, waiter: Waiter, keys: Iterable[bytes]) -> None:
        for key in keys:
            mine = self._by_key[key]
            del mine[waiter.number]
            if not mine:
                del self._by_key[key]

    def remove(self, waiter: Waiter) -> None:
        del self._open[waiter.number]
        self._drop_keys(waiter, waiter.wanted)
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self._open):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._open]
            heapq.heapify(self._deadlines)

    def all(self) -> list[Waiter]:
        return list(self._open.values())

    def concerned(self, keys: Iterable[bytes]) -> list[Waiter]:
        """Whose answer may have changed with these keys, each once, in the order in which they came."""
        found: dict[int, Waiter] = {}
        for key in keys:
            found.update(self._by_key.get(key, {}))
        return [found[number] for number in sorted(found)]

    # --- looked at again ---------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        """The answer of some may have changed, and nobody has looked."""
        return bool(self._unsettled)

    def is_unsettled(self, waiter: Waiter) -> bool:
        return waiter.number in self._unsettled

    def unsettle(self, waiters: Iterable[Waiter]) -> None:
        self._unsettled.update((waiter.number, waiter) for waiter in waiters)

    def next_unsettled(self) -> Waiter | None:
        """Once each, the longest unsettled first; the caller looks."""
        while self._unsettled:
            _, waiter = self._unsettled.popitem(last=False)
            if waiter in self:
                return waiter
        return None

    # --- times -------------------------------------------------------------------------------------------------------

    def due(self, now: float) -> Iterator[Waiter]:
        """Those whose wait is over. The caller removes each before it takes the next."""
        while self._deadlines and self._deadlines[0][0] <= now:
            waiter = self._open.get(heapq.heappop(self._deadlines)[1])
            if waiter is not None:
                yield waiter

    def next_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][1] not in self._open:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def validate(self) -> None:
        listed = {number for _, number in self._deadlines}
        assert listed >= self._open.keys(), "a waiter without a deadline"
        assert len(self._deadlines) <= max(64, 4 * len(self._open) + 1)
        pairs = {(key, number) for key, mine in self._by_key.items() for number in mine}
        assert pairs == {(key, waiter.number) for waiter in self._open.values() for key in waiter.wanted}
