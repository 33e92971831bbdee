"""What one half of the connector counts and measures between two reports to vLLM. Safe to use from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any


class Counters:
    def __init__(self) -> None:
        self._part = ""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._times: dict[str, list[float]] = {}
        self._read: Callable[[], Mapping[str, int]] = dict
        self._told: dict[str, int] = {}

    def add(self, name: str, amount: int = 1, label: str = "") -> None:
        if amount:
            entry = f"{name}|{label}" if label else name
            with self._lock:
                self._counts[entry] = self._counts.get(entry, 0) + amount

    def observe(self, name: str, seconds: float, label: str = "") -> None:
        """One observation of a duration."""
        entry = f"{name}|{label}" if label else name
        with self._lock:
            self._times.setdefault(entry, []).append(seconds)

    def watch(self, part: str, read: Callable[[], Mapping[str, int]]) -> None:
        """`read` gives the gauges of this part: `scheduler`, `rank 0`, … Until told otherwise vLLM takes each for 0.

        Gauges are added up over the parts, not over time.
        """
        self._part, self._read = part, read

    def __bool__(self) -> bool:
        """Is there anything that vLLM does not know yet? Gauges that fell to zero are."""
        return bool(self._counts or self._times or self._moved())

    def take(self) -> dict[str, Any]:
        """What was counted and measured since the last call, and gauges that have changed since: `name` or `name|label` → growth,
        list of seconds, or value."""
        moved = self._moved()
        self._told.update(moved)
        with self._lock:
            counts, self._counts = self._counts, {}
            times, self._times = self._times, {}
        return {**counts, **times, **{f"{name}|{self._part}": value for name, value in moved.items()}}

    def _moved(self) -> dict[str, int]:
        return {name: value for name, value in self._read().items() if value != self._told.get(name, 0)}
