"""What the connector counts between two reports to vLLM. Safe to use from any thread."""

from __future__ import annotations

import threading
from collections import defaultdict


class Counters:
    """Growth since the last `take`, by `name` or `name|label`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = defaultdict(int)

    def add(self, name: str, amount: int = 1, label: str = "") -> None:
        if amount:
            with self._lock:
                self._values[f"{name}|{label}" if label else name] += amount

    def __bool__(self) -> bool:
        return bool(self._values)

    def take(self) -> dict[str, int]:
        """All that was counted since the last call."""
        with self._lock:
            values, self._values = dict(self._values), defaultdict(int)
        return values
