"""Pages that are kept until a time, pure: those an intent was told of (`have`), and those an operator wants kept (`keep`)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

from pegaflow.services.tier.page import Page

BATCH = 512  # pages that are looked at together


class Holds:
    """One entry per page, however often its time is moved; pages come back in time order.

    `page.hold_until` and `page.kept_until` are the caller's to set, before `add`.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, list[Page]]] = []
        self._numbers = itertools.count()
        self.count = 0

    def add(self, pages: Iterable[Page], now: float) -> None:
        """Watches these pages until their time has come."""
        new = [page for page in pages if not page.timed and _until(page) > now]
        for page in new:
            page.timed = True
        self.count += len(new)
        for start in range(0, len(new), BATCH):
            self._push(new[start : start + BATCH])

    def _push(self, pages: list[Page]) -> None:
        if pages:
            heapq.heappush(self._due, (min(map(_until, pages)), next(self._numbers), pages))

    def overdue(self, now: float) -> bool:
        """There are pages that are perhaps not kept any more."""
        return bool(self._due) and self._due[0][0] <= now

    def due(self, now: float, most: int) -> list[Page]:
        """Pages that are not kept any more, of the next batches that have `most` pages: nobody waits for all of them."""
        over: list[Page] = []
        looked = 0
        while looked < most and self.overdue(now):
            _, _, pages = heapq.heappop(self._due)
            looked += len(pages)
            # PERF: pages whose time was moved go on together; each is looked at once per hold, not once per move.
            self._push([page for page in pages if _until(page) > now])
            over += [page for page in pages if _until(page) <= now]
        for page in over:
            page.timed = False
        self.count -= len(over)
        return over

    def validate(self) -> None:
        pages = [page for _, _, batch in self._due for page in batch]
        assert len(pages) == len(set(pages)) == self.count
        assert all(page.timed for page in pages)


def _until(page: Page) -> float:
    return max(page.hold_until, page.kept_until)
