"""Locates that wait, pure: answered by what happens, not by asking again and again."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

MAX_WAITERS = 4096


class Waiter:
    """One locate without an answer. `asker` is the node that asks, `request` what the shell answers."""

    __slots__ = ("asker", "deadline", "expected", "keys", "number", "request", "wanted")

    def __init__(self, number: int, request: Any, asker: str, keys: Sequence[bytes], deadline: float, expected: bool) -> None:
        self.number, self.request, self.asker, self.keys = number, request, asker, keys
        self.deadline, self.expected = deadline, expected
        self.wanted = frozenset(keys)


class Waiters:
    """PERF: found by intersecting their key sets with what changed. That costs a probe per changed key and waiter, and nothing
    per key when a locate begins to wait, which they do far more often than they wait for long."""

    def __init__(self) -> None:
        self._open: dict[int, Waiter] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= MAX_WAITERS

    def add(self, request: Any, asker: str, keys: Sequence[bytes], deadline: float, expected: bool) -> None:
        waiter = Waiter(next(self._numbers), request, asker, keys, deadline, expected)
        self._open[waiter.number] = waiter
        heapq.heappush(self._deadlines, (deadline, waiter.number))

    def remove(self, waiter: Waiter) -> None:
        del self._open[waiter.number]
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self._open):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._open]
            heapq.heapify(self._deadlines)

    def all(self) -> list[Waiter]:
        return list(self._open.values())

    def sealed(self, node: str, keys: Sequence[bytes]) -> list[Waiter]:
        """Who can be answered because these keys were sealed on `node`."""
        return [w for w in self._open.values() if w.asker != node and not w.wanted.isdisjoint(keys)]

    def gone(self, keys: Sequence[bytes]) -> list[Waiter]:
        """Who may have nothing left to wait for because these keys are gone; an expected key is worth waiting for anyway."""
        return [w for w in self._open.values() if not w.expected and not w.wanted.isdisjoint(keys)]

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
