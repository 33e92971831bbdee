"""Verifying, pure: do pages that are here still have the bytes they were sealed with?

    adopted    pages of an earlier life, before their first use     lookups   as `verify_on_load` says     scrubber   all, slowly

A job holds one reference on each of its pages, except for the scrubber: nobody waits for it, so nobody goes without space for it.
It only reads; what it finds of a page that has left meanwhile says nothing. A page that does not fit is dropped for good, and
whoever copies from its slots sees their generation move.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pegaflow.services.tier.commands import Command, Hash, Log
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages

JOB_BYTES = 32 << 20
Done = Callable[[list[Page], float], None]
"""Called with the bad pages and the time, once the last of them is known."""


class OnLoad(StrEnum):
    """Which local pages are verified before they are leased."""

    ALWAYS = "always"
    SAMPLE = "sample"
    NEVER = "never"


@dataclass(slots=True, eq=False)
class _Check:
    """What somebody waits for, in one or more jobs; `holds`: they hold references."""

    jobs: int
    bad: list[Page]
    done: Done | None
    holds: bool


class Verifier:
    """Jobs under way. `every`: one in so many pages that are leased is verified first; 1 all, 0 none."""

    def __init__(
        self,
        pages: Pages,
        out: list[Command],
        counts: dict[str, int],
        jobs: itertools.count[int],
        wake: Callable[[bytes], None],
        every: int = 0,
    ) -> None:
        self._pages, self._out, self._counts, self._jobs, self._wake = pages, out, counts, jobs, wake
        self.retune(every)
        self.open: dict[int, tuple[list[Page], _Check]] = {}
        self._adopting: set[Page] = set()

    def retune(self, every: int) -> None:
        """As at the start."""
        self.on_load = every > 0
        self._every, self._skipped = every, 0

    def first_use(self, pages: Iterable[Page]) -> None:
        """Starts what is not under way yet for pages that are not verified; their keys are woken when it is known."""
        wanted = [page for page in pages if not page.verified and page not in self._adopting]
        if wanted:
            self._adopting.update(wanted)
            self.check(wanted)

    def sample(self, pages: Sequence[Page]) -> list[Page]:
        """Which of these pages, about to be leased, have to be verified first; only if `on_load`."""
        chosen = list(pages[(-1 - self._skipped) % self._every :: self._every])
        self._skipped = (self._skipped + len(pages)) % self._every
        return chosen

    def check(self, pages: Sequence[Page], done: Done | None = None, holds: bool = True) -> None:
        """Takes checksums of these sealed pages, in jobs of at most JOB_BYTES (or one page)."""
        check = _Check(0, [], done, holds)
        start = size = 0
        for i, page in enumerate(pages):
            page.refs += holds
            size += page.size
            if size >= JOB_BYTES or i == len(pages) - 1:
                job, batch = next(self._jobs), list(pages[start : i + 1])
                self.open[job] = batch, check
                check.jobs += 1
                slots = tuple(slot for one in batch for slot in one.slots)
                self._out.append(Hash(job, slots, tuple(length for one in batch for length in one.lengths)))
                start, size = i + 1, 0
        if holds:
            self._pages.space.look(list(pages))  # held now; not used, so their age is what it was

    def hashed(self, job: int, found: Sequence[bytes] | None, now: float) -> None:
        """Checksums of a job, 16 bytes per slot; None: they could not be taken, so nothing speaks for these pages."""
        pages, check = self.open.pop(job)
        check.jobs -= 1
        at = 0
        for page in pages:
            page.refs -= check.holds
            count = len(page.lengths)  # not of its slots: it may have none any more
            fits = found is not None and list(found[at : at + count]) == page.checksums
            at += count
            self._adopting.discard(page)
            if page.state is not PageState.SEALED:  # another job has found it bad
                if check.done is not None:
                    check.bad.append(page)
                self._pages.free_if_done(page)
            elif fits:
                self._counts["verified"] += 1
                self._pages.verify(page)
            else:
                check.bad.append(page)
                self._bad(page)
            self._wake(page.key)
        if check.holds:
            self._pages.space.look(pages)
        if not check.jobs and check.done is not None:
            check.done(check.bad, now)

    def _bad(self, page: Page) -> None:
        self._counts["verified_bad" if page.verified else "adopted_bad"] += 1
        self._out.append(Log("bad_page", {"key": page.key.hex(), "slots": list(page.slots), "adopted": not page.verified}))
        self._pages.spoil(page)

    def held(self) -> list[Page]:
        """Every reference of its jobs, one by one."""
        return [page for pages, check in self.open.values() if check.holds for page in pages]

    def validate(self) -> None:
        for pages, check in self.open.values():
            assert pages and check.jobs and (not check.holds or all(page.refs > 0 for page in pages))
        assert self._adopting <= {page for pages, _ in self.open.values() for page in pages}
