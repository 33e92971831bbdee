"""One look at every page in memory, pure: some slabs at a time, while pages come and go.

A page that is here from the beginning to the end is seen once. One that comes meanwhile may be seen or not, one that leaves too.
"""

from __future__ import annotations

from pegaflow.services.tier.page import Page
from pegaflow.services.tier.slots import SlotAllocator


class Round:
    """Over the slabs that are cut when it is made. Holds no page."""

    def __init__(self, allocator: SlotAllocator) -> None:
        self._allocator = allocator
        self._firsts = allocator.firsts()[::-1]

    def next(self, count: int) -> list[Page]:
        """The pages of as many slabs as have `count` or more, whatever their state; none: everything was seen."""
        found: list[Page] = []
        while self._firsts and len(found) < count:
            found += self._allocator.pages(self._firsts.pop())
        return found

    @property
    def over(self) -> bool:
        return not self._firsts

    def rest(self) -> list[Page]:
        """What was not looked at yet. For checks."""
        return [page for first in self._firsts for page in self._allocator.pages(first)]
