"""The arithmetic of the tier benchmark: spans of time become rates, and ratios within rounds. Pure."""

from __future__ import annotations

import statistics
from typing import NamedTuple


class Span(NamedTuple):
    """From when to when so many pages were moved, seconds of one clock. `from_disk`: how many of them came from there."""

    begin: float
    end: float
    pages: int
    from_disk: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.begin


class Rounds:
    """Spans of each way of moving pages of one size, round by round.

    What is compared was measured within one round, seconds apart: a slow minute of the machine hits both.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self._spans: dict[str, list[Span]] = {}

    def add(self, way: str, span: Span) -> None:
        """Raises ValueError for a span that cannot be."""
        if span.seconds <= 0 or span.pages <= 0:
            raise ValueError(f"{way}: {span.pages} pages in {span.seconds} s")
        self._spans.setdefault(way, []).append(span)

    def __contains__(self, way: str) -> bool:
        return way in self._spans

    def pages_s(self, way: str) -> float:
        """The median round's."""
        return statistics.median(span.pages / span.seconds for span in self._spans[way])

    def gb_s(self, way: str) -> float:
        """The same in 10⁹ bytes."""
        return self.pages_s(way) * self._page_bytes / 1e9

    def ratio(self, way: str, other: str) -> float:
        """How many times as fast `way` is: the median of the ratios of the rounds. Raises ValueError where rounds are missing."""
        pairs = zip(self._spans[way], self._spans[other], strict=True)
        return statistics.median(one.pages / one.seconds * two.seconds / two.pages for one, two in pairs)
