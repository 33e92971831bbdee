"""How long each event takes, by what happens: processor time, so that what else runs on the machine is not part of it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any


class Recorder:
    """`rows` for the report. `case` runs something; `call` takes the time of each step in it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._times: dict[str, list[float]] = {}

    def call(self, name: str, step: Callable[[], Any]) -> Any:
        began = time.thread_time()
        found = step()
        self._times.setdefault(name, []).append((time.thread_time() - began) * 1e3)
        return found

    def case(self, what: str, run: Callable[[], Any], times: int = 1) -> Any:
        """What only looks may run more often: the run whose longest event is shortest counts, because others use this machine."""
        best: dict[str, list[float]] = {}
        found = None
        for _ in range(times):
            self._times = {}
            found = run()
            if not best or _longest(self._times) < _longest(best):
                best = self._times
        name = max(best, key=lambda event: max(best[event]))
        took = [ms for event in best.values() for ms in event]
        row = {"what": what, "event": name, "longest_ms": round(max(took), 2), "events": len(took), "all_ms": round(sum(took), 1)}
        self.rows.append(row)
        print(f"  {row['longest_ms']:9.2f} ms  {what} ({name}, {len(took)} events)", file=sys.stderr, flush=True)
        return found


def _longest(times: dict[str, list[float]]) -> float:
    return max(max(event) for event in times.values())


class Collector:
    """The longest stop for the garbage collector since it was made."""

    def __init__(self) -> None:
        self._began = 0.0
        self.times: dict[int, list[float]] = {}
        gc.callbacks.append(self._called)

    def _called(self, phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.times.setdefault(told["generation"], []).append((time.thread_time() - self._began) * 1e3)

    def rows(self, what: str) -> list[dict[str, Any]]:
        gc.callbacks.remove(self._called)
        return [
            {
                "what": what,
                "event": f"garbage collector, generation {generation}",
                "longest_ms": round(max(times), 2),
                "events": len(times),
                "all_ms": round(sum(times), 1),
            }
            for generation, times in sorted(self.times.items())
        ]
