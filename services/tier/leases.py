"""Leases and pins, pure: permission to read pages that will not move while it lasts.

    lease   a local engine's: idle for 2 s at a time (renewed by the scheduler half's `alive`), then loading until it is released
    pin     another tier's: `ttl` plus a margin, counted from the answer; the reader counts from before it asked

A local lease may run out safely: the generation tells the reader. A pin may not, hence the margin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages

IDLE_S = 2.0
MARGIN_S = 1.0
MAX_LEASED = 0.5
END_PAGES = 16_384
"""Let go in one tick (or those of one lease): that of many leases at once must not be felt by those who come next."""
_LOST = -1.0


@dataclass(slots=True, eq=False)
class Lease:
    """`session` 0: a pin of another tier. `expires` infinity: loading. `lookup`: whose answer it came with."""

    number: int
    session: int
    pages: list[Page]
    expires: float
    reader: str = ""
    granules: int = 0
    lookup: int = 0
    at: float = 0.0
    request: str = ""


class Leases:
    """Every open lease; each holds one reference on each of its pages."""

    def __init__(self, pages: Pages, counts: dict[str, int]) -> None:
        self._pages, self._counts = pages, counts
        self._numbers = itertools.count(1)
        self.open: dict[int, Lease] = {}
        self._idle_granules = 0
        self.behind = False
        """There are leases whose time is over; the next tick ends some."""
        self.pins = 0
        self.readers_until = 0.0
        """No open pin lasts longer; 0: there is none."""

    def adopt(self, session: int, lookup: int, pages: list[Page], now: float, request: str = "") -> Lease:
        """A new idle lease over pages whose references the caller hands over."""
        size = sum([page.granules for page in pages])
        lease = Lease(next(self._numbers), session, pages, now + IDLE_S, granules=size, lookup=lookup, at=now, request=request)
        self.open[lease.number] = lease
        self._idle_granules += lease.granules
        return lease

    def pin(self, reader: str, pages: list[Page], ttl_s: float, now: float) -> Lease:
        """A new pin; takes the references itself."""
        for page in pages:
            page.refs += 1
        lease = Lease(next(self._numbers), 0, pages, now + ttl_s + MARGIN_S, reader, at=now)
        self.open[lease.number] = lease
        self.pins += 1
        self.readers_until = max(self.readers_until, lease.expires)
        return lease

    def renew(self, numbers: Iterable[int], session: int, now: float) -> None:
        """Idle leases last IDLE_S from now, unless more than half of the pool is leased."""
        if self._idle_granules > MAX_LEASED * self._pages.allocator.backed:
            self._counts["renewals_refused"] += 1
            return
        for number in numbers:
            lease = self.open.get(number)
            if lease is not None and lease.session == session:
                lease.expires = max(lease.expires, now + IDLE_S)

    def loading(self, numbers: Iterable[int], session: int) -> None:
        """Ranks are about to copy: from now on the lease ends with its release only."""
        for number in numbers:
            lease = self.open.get(number)
            if lease is not None and lease.session == session and lease.expires != float("inf"):
                self._idle_granules -= lease.granules
                lease.expires = float("inf")

    def release(self, numbers: Iterable[int], session: int) -> None:
        """Ends leases of this session (0: pins); others are ignored."""
        for number in list(numbers):
            lease = self.open.get(number)
            if lease is not None and lease.session == session:
                self._end(lease)

    def load(self) -> tuple[int, int]:
        """How busy this tier is for others: open pins, and the leased share of its pool in thousandths."""
        leased = sum(lease.granules for lease in self.open.values())
        return self.pins, min(1000, 1000 * leased // max(1, self._pages.allocator.backed))

    @property
    def under_load(self) -> int:
        """How many last until they are released, because ranks copy."""
        return sum(lease.expires == float("inf") for lease in self.open.values())

    def of_session(self, session: int) -> list[Lease]:
        return [lease for lease in self.open.values() if lease.session == session]

    def lose(self, session: int) -> None:
        """Its engine is dead or has left: its leases are over, whatever it loaded."""
        for lease in self.of_session(session):
            if lease.expires == float("inf"):
                self._idle_granules += lease.granules
            lease.expires = _LOST
        self.expire(0.0)

    def expire(self, now: float) -> None:
        """Ends leases whose time is over: some, and the rest in the ticks that follow."""
        budget = END_PAGES
        self.behind = False
        for lease in [lease for lease in self.open.values() if lease.expires <= now]:
            if budget <= 0:
                self.behind = True
                return
            budget -= len(lease.pages)
            self._counts["leases_expired"] += lease.expires != _LOST
            self._end(lease)

    def _end(self, lease: Lease) -> None:
        del self.open[lease.number]
        if not lease.session:
            self.pins -= 1
            if not self.pins:
                self.readers_until = 0.0
        if lease.session and lease.expires != float("inf"):
            self._idle_granules -= lease.granules
        doomed = PageState.DOOMED
        for page in lease.pages:
            page.refs -= 1
            if page.state is doomed:
                self._pages.free_if_done(page)
        self._pages.space.look(lease.pages)

    def validate(self) -> None:
        idle = sum(lease.granules for lease in self.open.values() if lease.session and lease.expires != float("inf"))
        assert idle == self._idle_granules
        pins = [lease.expires for lease in self.open.values() if not lease.session]
        assert self.pins == len(pins) and (max(pins) <= self.readers_until if pins else not self.readers_until)
        for lease in self.open.values():
            assert all(page.refs > 0 for page in lease.pages)
