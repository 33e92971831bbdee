"""Fetching, pure: pages of another tier into slots of this one (docs/protocol.md 3.3, 3.4; docs/architecture.md rule 2).

    reserve slots ▶ pin at the owner ▶ READ ▶ lease still good? ▶ checksum fits? ▶ sealed
                       │                 │ deadline: given up; the slots stay in quarantine until the READ has ended
                       └ anything else: the owner is not asked again for these keys by those who wait

Nothing waits for slots while holding slots or pins: what does not fit is cut off before the pin is sent.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages.inspection import Step
from pegaflow.common.wire.messages.transfer import CHECKSUM_BYTES, Pinned
from pegaflow.services.tier.commands import Command, ForgetPeer, GiveUp, Hash, Log, PinAt, Read, UnpinAt
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages

READ_DEADLINE_S = 2.0
PIN_TTL_S = 4.0
BATCHES = 4
"""Of what one lookup fetches: while one is read, the one before is verified and the next gets slots. Each costs about a
millisecond of tier, mover and owner: of little there are fewer (scripts/bench/handoff)."""
MIN_BATCH_BYTES, MAX_BATCH_BYTES = 16 << 20, 128 << 20


class Owner(NamedTuple):
    """A tier that is said to hold a page."""

    node: str
    epoch: int
    endpoint: str

    @property
    def agent(self) -> str:
        """What its mover is called in every `pinned` of this life."""
        return f"{self.node}/{self.epoch:016x}"


class Stage(StrEnum):
    PINNING = "pinning"
    READING = "reading"
    VERIFYING = "verifying"
    GIVEN_UP = "given_up"


@dataclass(slots=True, eq=False)
class Fetch:
    """One batch of pages from one owner. Holds one reference on each page until its READ has ended and was verified."""

    number: int
    owner: Owner
    pages: list[Page]
    stage: Stage
    deadline: float
    lease: int = 0
    lease_until: float = 0.0
    checksums: bytes = b""


class Fetches:
    """Batches under way. `failed(keys, owner, code)` tells the lookups that this owner did not deliver."""

    def __init__(
        self,
        pages: Pages,
        out: list[Command],
        counts: dict[str, int],
        jobs: itertools.count[int],
        wake: Callable[[bytes], None],
        failed: Callable[[Sequence[bytes], Owner, str], None],
    ) -> None:
        self._pages, self._out, self._counts = pages, out, counts
        self._jobs, self._wake, self._failed = jobs, wake, failed
        self.min_batch_bytes = MIN_BATCH_BYTES
        self.open: dict[int, Fetch] = {}
        self.verifying: dict[int, Fetch] = {}
        self._lives: dict[str, int] = {}  # epochs by node, of tiers that were named as owners and have not failed to answer since

    def elsewhere(self, page: Page) -> bool:
        """Is this page a replica whose owner is known to have it? It delivered it, in a life that goes on as far as is known."""
        owner: Owner | None = page.owner
        return owner is not None and self._lives.get(owner.node) == owner.epoch

    def batch(self, pages: int, lengths: tuple[int, ...]) -> int:
        """How many are fetched at a time of so many pages that somebody waits for."""
        page_bytes = max(1, sum(lengths))
        return max(1, min(max(self.min_batch_bytes, pages * page_bytes // BATCHES), MAX_BATCH_BYTES) // page_bytes)

    def start(
        self,
        owner: Owner,
        keys: Sequence[bytes],
        lengths: tuple[int, ...],
        now: float,
        before: Page | None = None,
        *,
        for_good: bool = False,
    ) -> int:
        """Begins to fetch a prefix of `keys`, usually a batch, which continues the page `before`; returns how many got slots.

        `for_good`: the owner leaves, so these are no replicas; they get free slots only, and none of them continues another.
        """
        taken: list[Page] = []
        grant = next(self._pages.grants)
        if for_good:
            self._lives.pop(owner.node, None)  # nobody may count on it: replicas of its pages are the only copies soon
        else:
            self._lives[owner.node] = owner.epoch
        for order, key in enumerate(keys):
            if key in self._pages.index:  # the same key twice
                break
            parent = None if for_good else taken[-1] if taken else before
            page = self._pages.reserve(key, PageState.FETCHING, lengths, parent=parent, spare=for_good)
            if page is None:
                break
            page.refs += 1
            page.grant, page.order, page.owner = grant, order, None if for_good else owner
            page.replica = not for_good
            self._pages.store_granted(page)
            taken.append(page)
        most = max(1, MAX_BATCH_BYTES // max(1, sum(lengths)))
        for first in range(0, len(taken), most):
            number = next(self._jobs)
            self.open[number] = Fetch(number, owner, taken[first : first + most], Stage.PINNING, now + READ_DEADLINE_S)
            names = list(keys[first : min(first + most, len(taken))])
            self._out.append(PinAt(number, owner.endpoint, owner.epoch, names, len(lengths), int(PIN_TTL_S * 1e3)))
        return len(taken)

    def pinned(self, number: int, answer: Pinned | PegaflowError, sent_at: float, now: float) -> None:
        fetch = self.open.get(number)
        if fetch is None or fetch.stage is not Stage.PINNING:
            if isinstance(answer, Pinned) and answer.lease:
                self._counts["late_pins"] += 1  # it runs out by itself at the owner
            return
        if isinstance(answer, PegaflowError):
            self._doubt(fetch.owner)
            if answer.code == ErrorCode.WRONG_EPOCH:
                self._out.append(ForgetPeer(fetch.owner.agent))
            self._end(fetch, fetch.pages, answer.code)
            return
        fetch.lease, fetch.lease_until = answer.lease, sent_at + PIN_TTL_S
        if answer.agent != fetch.owner.agent:  # its metadata would replace another peer's
            self._end(fetch, fetch.pages, ErrorCode.BAD_MESSAGE)
            return
        shards = len(fetch.pages[0].slots)
        there = {position: i for i, position in enumerate(answer.positions)}
        kept, missing = [], []
        local, remote, lengths, checksums = array("Q"), array("Q"), array("I"), bytearray()
        for position, page in enumerate(fetch.pages):
            i = there.get(position)
            at = slice(i * shards, (i + 1) * shards) if i is not None else slice(0, 0)
            if i is None or tuple(answer.lengths[at]) != page.lengths:
                missing.append(page)
                continue
            page.rows = answer.rows[i]
            kept.append(page)
            local.extend(slot * GRANULE for slot in page.slots)
            remote.extend(answer.offsets[at])
            lengths.extend(page.lengths)
            checksums += answer.checksums[CHECKSUM_BYTES * at.start : CHECKSUM_BYTES * at.stop]
        fetch.pages, fetch.checksums = kept, bytes(checksums)
        if missing:
            self._counts["stale_hints"] += len(missing)
            self._lose(fetch.owner, missing, ErrorCode.GONE)
        if not kept:
            self._end(fetch, [], "")
            return
        fetch.stage, fetch.deadline = Stage.READING, min(now + READ_DEADLINE_S, fetch.lease_until)
        self._out.append(Read(number, answer.agent, answer.metadata, answer.base, answer.pool_bytes, local, remote, lengths))

    def read_ended(self, number: int, outcome: str, now: float) -> None:
        """The mover's last word: nothing can land in these slots any more."""
        fetch = self.open.get(number)
        if fetch is None:
            return
        if fetch.stage is Stage.GIVEN_UP:
            del self.open[number]
            self._counts["quarantine_left"] += len(fetch.pages)
            self._unref(fetch.pages)
            return
        if fetch.stage is not Stage.READING:
            return
        if outcome != "done":
            self._end(fetch, fetch.pages, outcome)
            return
        if now > fetch.lease_until:
            self._end(fetch, fetch.pages, ErrorCode.LEASE_EXPIRED)
            return
        fetch.stage = Stage.VERIFYING
        self._unpin(fetch)
        job = next(self._jobs)
        self.verifying[job] = fetch
        slots = tuple(slot for page in fetch.pages for slot in page.slots)
        lengths = tuple(length for page in fetch.pages for length in page.lengths)
        self._out.append(Hash(job, slots, lengths))

    def verified(self, job: int, found: Sequence[bytes] | None) -> None:
        """Checksums of what arrived; each page stands or falls alone. None: all fall."""
        fetch = self.verifying.pop(job)
        self.open.pop(fetch.number, None)
        bad: list[Page] = []
        at = 0
        for page in fetch.pages:
            count = len(page.slots)
            mine = list(found[at : at + count]) if found is not None else []
            wanted = fetch.checksums[CHECKSUM_BYTES * at : CHECKSUM_BYTES * (at + count)]
            at += count
            page.refs -= 1
            if b"".join(mine) != wanted:
                self._counts["bad_checksum"] += found is not None
                bad.append(page)
                continue
            page.unwritten.clear()
            if self._pages.seal(page, mine):
                self._pages.chronicle.one(Step.FETCHED, page.key, (fetch.owner.node,))
                self._counts["fetched"] += 1
                self._counts["fetched_bytes"] += page.size
            self._wake(page.key)
        if bad:
            if found is not None:
                self._out.append(Log("bad_checksum", {"node": fetch.owner.node, "pages": len(bad)}))
            for page in bad:
                self._pages.doom(page)
            self._tell(fetch.owner, bad, ErrorCode.INTERNAL if found is None else ErrorCode.BAD_CHECKSUM)

    def expire(self, now: float) -> None:
        """Gives up what is past its deadline."""
        for fetch in [fetch for fetch in self.open.values() if fetch.deadline <= now]:
            if fetch.stage is Stage.PINNING:
                self._doubt(fetch.owner)
                self._end(fetch, fetch.pages, ErrorCode.DEADLINE)
            elif fetch.stage is Stage.READING:
                fetch.stage = Stage.GIVEN_UP
                self._counts["reads_given_up"] += 1
                self._out.append(GiveUp(fetch.number))
                for page in fetch.pages:
                    self._pages.quarantine(page)
                    self._pages.doom(page)
                self._tell(fetch.owner, fetch.pages, ErrorCode.DEADLINE)

    def _doubt(self, owner: Owner) -> None:
        """It did not answer in that life: nothing is known of what it has, until it is named again."""
        if self._lives.get(owner.node) == owner.epoch:
            del self._lives[owner.node]

    def _end(self, fetch: Fetch, lost: list[Page], code: str) -> None:
        del self.open[fetch.number]
        self._unpin(fetch)
        if lost:
            self._lose(fetch.owner, lost, code)

    def _unpin(self, fetch: Fetch) -> None:
        if fetch.lease:
            self._out.append(UnpinAt(fetch.owner.endpoint, fetch.owner.epoch, fetch.lease))
            fetch.lease = 0

    def _lose(self, owner: Owner, pages: list[Page], code: str) -> None:
        self._unref(pages)
        for page in pages:
            self._pages.doom(page)
        self._tell(owner, pages, code)

    def _tell(self, owner: Owner, pages: list[Page], code: str) -> None:
        self._counts["fetch_failed"] += len(pages)
        keys = [page.key for page in pages]
        self._pages.chronicle.note(Step.FETCH_FAILED, keys, (owner.node, code))
        self._failed(keys, owner, code)
        for key in keys:
            self._wake(key)

    def _unref(self, pages: list[Page]) -> None:
        for page in pages:
            page.refs -= 1
            self._pages.free_if_done(page)

    def validate(self) -> None:
        for fetch in self.open.values():
            assert fetch.pages
            assert all(page.refs > 0 for page in fetch.pages)
