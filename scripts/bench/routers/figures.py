"""The arithmetic of the router benchmark: what loads found becomes rates, and differences and ratios within rounds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """What one load found. `first_us`: to the first byte of an answer's body; `cpu_s`: of the router; 0 where there is none."""

    seconds: float
    answers: int
    chunks: int
    p50_us: float
    p99_us: float
    first_us: float
    cpu_s: float

    @property
    def answers_s(self) -> float:
        return self.answers / self.seconds

    @property
    def chunks_s(self) -> float:
        return self.chunks / self.seconds

    @property
    def cores(self) -> float:
        return self.cpu_s / self.seconds

    @property
    def answers_core(self) -> float:
        """For a second of CPU."""
        return self.answers / self.cpu_s

    @property
    def chunks_core(self) -> float:
        """For a second of CPU."""
        return self.chunks / self.cpu_s


What = Callable[[Span], float]


class Rounds:
    """Spans of each side under one load, round by round. What is compared was measured within one round, seconds apart."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = {}

    def add(self, side: str, span: Span) -> None:
        """Raises ValueError for a span that cannot be."""
        if span.seconds <= 0 or span.answers <= 0:
            raise ValueError(f"{side}: {span.answers} answers in {span.seconds} s")
        self._spans.setdefault(side, []).append(span)

    @property
    def sides(self) -> list[str]:
        return list(self._spans)

    def __contains__(self, side: str) -> bool:
        return side in self._spans

    def median(self, side: str, what: What) -> float:
        return statistics.median(map(what, self._spans[side]))

    def added(self, side: str, other: str, what: What) -> float:
        """The median of the rounds' differences. Raises ValueError where rounds are missing."""
        return statistics.median(what(one) - what(two) for one, two in self._pairs(side, other))

    def ratio(self, side: str, other: str, what: What) -> float:
        """The median of the rounds' ratios. Raises ValueError where rounds are missing."""
        return statistics.median(what(one) / what(two) for one, two in self._pairs(side, other))

    def _pairs(self, side: str, other: str) -> list[tuple[Span, Span]]:
        return list(zip(self._spans[side], self._spans[other], strict=True))


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line nearest to the points (least squares). Raises ValueError for fewer than two of them."""
    if len(points) < 2:
        raise ValueError("a line needs two points")
    xs, ys = zip(*points, strict=True)
    return statistics.linear_regression(xs, ys).slope
