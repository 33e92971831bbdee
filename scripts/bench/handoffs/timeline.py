"""The moments of one handoff and the stages between them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from bench.report import percentile  # so that tests, to which this is another package, find it too

MOMENTS: Final = ("added", "claimed", "received", "scheduled", "first")
"""What D's engine core writes down of a request, in order (engines/recorder.py)."""
STAGES: Final = ("to D", "lookup", "load", "to the step", "step", "to the client")
"""to D: router, HTTP, D's API server. lookup: with the fetch from the other tier. load: pool to KV cache, and until the engine
core hears of it. to the step: until it is scheduled. step: D's first decode step. to the client: API server, HTTP, router."""
HANDOFF: Final = 4
"""So many stages lie between P's answer and the beginning of D's first decode step."""


class Handoff(NamedTuple):
    """Seconds of each stage."""

    stages: tuple[float, ...]

    @property
    def to_step(self) -> float:
        """P's answer → D's first decode step begins."""
        return sum(self.stages[:HANDOFF])

    @property
    def to_client(self) -> float:
        """P's answer → the client has D's first token."""
        return sum(self.stages)


def handoff(answered: float, moments: Mapping[str, float], heard: float) -> Handoff:
    """`answered`: when the router had P's answer; `heard`: when the client had D's first token; all of one clock.

    Raises ValueError for a request that D did not load from its tier, or whose moments are not in order.
    """
    if missing := [name for name in MOMENTS if name not in moments]:
        raise ValueError(f"D says nothing of: {', '.join(missing)}")
    line = [answered, *(moments[name] for name in MOMENTS), heard]
    stages = tuple(after - before for before, after in pairwise(line))
    if min(stages) < 0:
        raise ValueError(f"not in order: {dict(zip(STAGES, stages, strict=True))}")
    return Handoff(stages)


def row(tokens: int, pages: int, seen: Sequence[Handoff]) -> dict[str, Any]:
    """Milliseconds: medians of the stages, then of both sums, with the ninth decile."""
    found: dict[str, Any] = {"prompt": tokens, "pages": pages, "n": len(seen)}
    for number, name in enumerate(STAGES):
        found[name] = statistics.median(one.stages[number] for one in seen) * 1e3
    for name, values in (("handoff", [one.to_step for one in seen]), ("to client", [one.to_client for one in seen])):
        found[f"{name} p50"] = statistics.median(values) * 1e3
        found[f"{name} p90"] = percentile(values, 0.9) * 1e3
    return found


def series(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Stage → (ids of the prompt, milliseconds), for a chart."""
    names = (*STAGES, "handoff p50")
    return {name: [(float(row["prompt"]), float(row[name])) for row in rows] for name in names}
