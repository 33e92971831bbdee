"""What is counted while the simulation runs, and what becomes of it. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank; nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)] if ordered else float("nan")


@dataclass(slots=True)
class Tally:
    """Times in seconds. Only what happens at or after `since` counts, so that a cold start does not."""

    since: float = 0.0
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, list[tuple[int, float]]] | None = None
    """Per kind of event, keys and measured seconds of each `handle()`; None: nobody measures."""

    def span(self, name: str, began: float, ended: float) -> None:
        if began >= self.since:
            self.spans.setdefault(name, []).append((began, ended - began))

    def count(self, name: str, now: float, amount: int = 1) -> None:
        if now >= self.since:
            self.counts[name] += amount

    def ms(self, name: str, share: float, between: tuple[float, float] = (0.0, float("inf"))) -> float:
        """Milliseconds at that rank, of what began between these times."""
        low, high = between
        return 1e3 * percentile([seconds for began, seconds in self.spans.get(name, []) if low <= began < high], share)

    def share(self, name: str, *of: str) -> float:
        whole = sum(self.counts[one] for one in of)
        return self.counts[name] / whole if whole else float("nan")
