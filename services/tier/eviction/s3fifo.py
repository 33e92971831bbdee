"""S3-FIFO, pure: what was used once goes before what was used often, however long ago (Yang et al., SOSP 2023).

    new ──▶ small ──used twice while there──▶ main ──used since it was last looked at──▶ back to main's end
              └──not──▶ evicted, remembered as a ghost; a ghost that comes again goes straight to main

So a scan of prompts that nobody asks for again passes through the small queue and leaves the main one alone.
"""

from __future__ import annotations

import itertools
from enum import StrEnum

from pegaflow.services.tier.eviction.aged import AgedQueue
from pegaflow.services.tier.page import Page

SMALL = 0.1
MAX_USES = 3
PROMOTE = 2


class Lane(StrEnum):
    SMALL = "small"
    MAIN = "main"


class S3Fifo:
    """Sizes of the lanes count held pages as well: a page keeps its lane and its place while it is held."""

    def __init__(self) -> None:
        self._queues = {lane: AgedQueue() for lane in Lane}
        self._counts = dict.fromkeys(Lane, 0)
        self._ghosts: dict[bytes, None] = {}
        self._places = itertools.count(1)

    def admit(self, page: Page) -> None:
        known = self._ghosts.pop(page.key, 0) is None
        page.lane, page.place, page.uses = Lane.MAIN if known else Lane.SMALL, next(self._places), 0
        self._counts[Lane(page.lane)] += 1

    def release(self, page: Page) -> None:
        if not page.age:
            self._queues[Lane(page.lane)].add(page, page.place)

    def hold(self, page: Page) -> None:
        self._queues[Lane(page.lane)].discard(page)

    def touch(self, page: Page, turn: int) -> None:
        page.used_at = turn
        page.uses = min(page.uses + 1, MAX_USES)

    def remove(self, page: Page) -> None:
        self.hold(page)
        lane = Lane(page.lane)
        self._counts[lane] -= 1
        if lane is Lane.SMALL:
            self._ghosts[page.key] = None
            while len(self._ghosts) > max(self._counts[Lane.MAIN], 16):
                del self._ghosts[next(iter(self._ghosts))]

    def victim(self) -> Page | None:
        small, main = self._queues[Lane.SMALL], self._queues[Lane.MAIN]
        while True:
            full = self._counts[Lane.SMALL] > SMALL * sum(self._counts.values())
            page = small.oldest() if full or not main else None
            if page is not None:
                if page.uses < PROMOTE:
                    return page
                self._move(page, 0)
                continue
            page = main.oldest()
            if page is None:
                return small.oldest()
            if not page.uses:
                return page
            self._move(page, page.uses - 1)

    def _move(self, page: Page, uses: int) -> None:
        """To the end of main."""
        self.hold(page)
        self._counts[Lane(page.lane)] -= 1
        self._counts[Lane.MAIN] += 1
        page.lane, page.place, page.uses = Lane.MAIN, next(self._places), uses
        self._queues[Lane.MAIN].add(page, page.place)

    def validate(self) -> None:
        for lane, queue in self._queues.items():
            queue.validate()
            assert len(queue) <= self._counts[lane]
