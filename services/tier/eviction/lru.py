"""Least recently used, pure."""

from __future__ import annotations

from pegaflow.services.tier.eviction.aged import AgedQueue
from pegaflow.services.tier.page import Page


class Lru:
    """The page whose last use is longest ago goes first."""

    def __init__(self) -> None:
        self._queue = AgedQueue()

    def admit(self, page: Page) -> None:
        """Nothing to note: its time of use stands on the page."""

    def release(self, page: Page) -> None:
        if page.age != page.used_at:
            self._queue.discard(page)
            self._queue.add(page, page.used_at)

    def hold(self, page: Page) -> None:
        self._queue.discard(page)

    def touch(self, page: Page, turn: int) -> None:
        page.used_at = turn

    def remove(self, page: Page) -> None:
        self._queue.discard(page)

    def victim(self) -> Page | None:
        return self._queue.oldest()

    def validate(self) -> None:
        self._queue.validate()
