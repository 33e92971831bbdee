"""The scrubber, pure: looks at every sealed page now and then, so that a page gone bad is found before it is wanted."""

from __future__ import annotations

from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.round import Round
from pegaflow.services.tier.verifier import JOB_BYTES, Verifier

PAUSE_S = 0.5
LOOKS = 1024  # pages passed over in one tick, at most


class Scrubber:
    """Walks over the pool, `rate` bytes a second (0: never), one batch at a time. Holds no page: it is in nobody's way."""

    def __init__(self, pages: Pages, verifier: Verifier, counts: dict[str, int], rate: float) -> None:
        self._pages, self._verifier, self._counts, self.rate = pages, verifier, counts, rate
        self._credit = 0.0
        self._ticked_at: float | None = None
        self._round = Round(pages.allocator)
        self._next_pages: list[Page] = []  # of a slab or more; they may have left meanwhile
        self._busy = False

    def tick(self, now: float) -> None:
        """Starts a batch when enough time has passed since the last one."""
        if not self.rate:
            return
        batch = min(self.rate * PAUSE_S, JOB_BYTES)
        passed = now - self._ticked_at if self._ticked_at is not None else 0.0
        self._ticked_at = now
        self._credit = min(self._credit + self.rate * passed, batch)
        if self._busy or self._credit < batch:
            return
        pages = self._next()
        if pages:
            self._busy = True
            self._counts["scrubbed"] += len(pages)
            self._verifier.check(pages, self._done, holds=False)

    def _next(self) -> list[Page]:
        if not self._next_pages and self._round.over:
            self._round = Round(self._pages.allocator)
        pages: list[Page] = []
        for _ in range(LOOKS):
            if not self._next_pages:
                self._next_pages = self._round.next(1)[::-1]
            if not self._next_pages:
                break
            page = self._next_pages.pop()
            if page.state is PageState.SEALED:
                pages.append(page)
                self._credit -= page.size  # below 0 after a large page: the next one waits for longer
                if self._credit <= 0:
                    break
        return pages

    def _done(self, bad: list[Page], now: float) -> None:
        self._busy = False
