"""Pages that were used, or may not be held any more, and are not in order yet; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from pegaflow.services.tier.page import Page


class Part(NamedTuple):
    """`turn` 0: not used. `before`: the page that the first one may continue."""

    turn: int
    pages: Sequence[Page]
    chain: bool
    before: Page | None


class Touched:
    """In the order in which it happened; taken part by part. Its length counts pages."""

    def __init__(self) -> None:
        self._all: deque[tuple[int, Sequence[Page], bool, int]] = deque()  # turn, pages, a chain?, how many were taken
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, turn: int, pages: Sequence[Page], chain: bool) -> None:
        """`chain`: each continues the one before. The sequence is not changed any more."""
        if pages:
            self._all.append((turn, pages, chain, 0))
            self._count += len(pages)

    def take(self, most: int) -> Part | None:
        """At least one page; None: there is nothing."""
        if not self._all:
            return None
        turn, pages, chain, start = self._all.popleft()
        part = pages[start : start + most] if start or len(pages) > most else pages
        self._count -= len(part)
        if start + len(part) < len(pages):
            self._all.appendleft((turn, pages, chain, start + len(part)))
        return Part(turn, part, chain, pages[start - 1] if chain and start else None)

    def pages(self) -> set[Page]:
        """For checks."""
        return {page for _, pages, _, start in self._all for page in pages[start:]}
