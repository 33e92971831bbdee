"""Pages by age, pure: add, discard and oldest in constant time, whatever the order in which pages come and go."""

from __future__ import annotations

import heapq

from pegaflow.services.tier.page import Page

_SLACK = 64


class AgedQueue:
    """Ages are numbers above 0; pages of one age go last in, first out: a chain that was used at once goes from its end.

    A page that was held for a while comes back at its own age, which a plain list cannot do without a walk. The heap holds one
    number per age in use, not per page. A page is in one queue at most; `page.age` says where (0: in none).
    """

    def __init__(self) -> None:
        self._pages: dict[int, dict[Page, None]] = {}
        self._ages: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, page: Page, age: int) -> None:
        """For a page that is in no queue."""
        pages = self._pages.get(age)
        if pages is None:
            pages = self._pages[age] = {}
            heapq.heappush(self._ages, age)
        pages[page] = None
        page.age = age
        self._count += 1

    def discard(self, page: Page) -> None:
        """For a page that is in this queue, or in none."""
        if not page.age:
            return
        pages = self._pages[page.age]
        del pages[page]
        if not pages:
            del self._pages[page.age]
            if len(self._ages) > 2 * len(self._pages) + _SLACK:  # ages whose pages have all gone
                self._ages = list(self._pages)
                heapq.heapify(self._ages)
        page.age = 0
        self._count -= 1

    def oldest(self) -> Page | None:
        """Stays in until it is discarded."""
        while self._ages:
            pages = self._pages.get(self._ages[0])
            if pages is not None:
                return next(reversed(pages))
            heapq.heappop(self._ages)
        return None

    def validate(self) -> None:
        assert self._count == sum(map(len, self._pages.values()))
        assert set(self._pages) <= set(self._ages)
        assert all(pages and all(page.age == age for page in pages) for age, pages in self._pages.items())
