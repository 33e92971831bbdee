"""Simulated time: what happens next, and processes that do one thing at a time."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any


class Agenda:
    """A heap of calls. Calls of the same time run in the order in which they were made, so a seed gives one story."""

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def at(self, time: float, call: Callable[..., Any], *what: Any) -> None:
        heapq.heappush(self._heap, (max(time, self.now), next(self._numbers), call, what))

    def after(self, seconds: float, call: Callable[..., Any], *what: Any) -> None:
        self.at(self.now + seconds, call, *what)

    def run(self, until: float) -> None:
        """Until that time, or until nothing is left to do."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, what = heapq.heappop(heap)
            call(*what)
            self.done += 1
        self.now = max(self.now, until)

    def run_while(self, unfinished: Callable[[], bool], until: float) -> bool:
        """Until the condition has ended; False: it has not by then."""
        while unfinished():
            if not self._heap or self._heap[0][0] > until:
                return False
            self.run(self._heap[0][0])
        return True


class Core:
    """The event loop of one process: takes what comes in order; a job returns the seconds that it takes.

    `wake_s` comes on top for a job that finds it asleep. What a job sends leaves while the job runs: the job itself says when.
    """

    def __init__(self, agenda: Agenda, wake_s: float = 0.0) -> None:
        self._agenda, self._wake_s = agenda, wake_s
        self._queue: deque[tuple[Callable[..., float], tuple[Any, ...]]] = deque()
        self._free_at = 0.0
        self._waking = False
        self.busy_s = self.woken_s = 0.0
        """`busy_s` with, `woken_s` only what waking up costs: the more there is to do, the less often it sleeps."""

    def give(self, job: Callable[..., float], *what: Any) -> None:
        self._queue.append((job, what))
        if not self._waking:
            if self._free_at <= self._agenda.now:
                self._next(self._wake_s)
            else:
                self._wake()

    @property
    def work_s(self) -> float:
        """What decides when it is full."""
        return self.busy_s - self.woken_s

    @property
    def backlog(self) -> int:
        return len(self._queue)

    def clear(self) -> None:
        """The process has died: what it had not got to is lost."""
        self._queue.clear()

    def _wake(self) -> None:
        self._waking = True
        self._agenda.at(self._free_at, self._next)

    def _next(self, asleep: float = 0.0) -> None:
        self._waking = False
        if not self._queue:
            return
        job, what = self._queue.popleft()
        self._waking = True  # what the job gives to its own core waits its turn
        seconds = asleep + job(*what)
        self._waking = False
        self.busy_s += seconds
        self.woken_s += asleep
        self._free_at = self._agenda.now + seconds
        if self._queue:
            self._wake()
