"""Lookups, pure: which prefix of these keys can be had here, now or within the wait (docs/protocol.md 3.1).

A lookup walks its keys in order. A sealed key is taken (one reference, so that it stays); anything else is waited for if that
makes sense: a pending or arriving key always, a key that another node holds by fetching it, an unknown one only if it is
expected. The answer goes out when the walk can get no further; the references taken become its lease.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.common.wire.messages import catalogue, loads
from pegaflow.common.wire.messages.catalogue import NO_OWNER, Located
from pegaflow.services.tier.commands import Command, Locate, Reply
from pegaflow.services.tier.disk.level import DiskLevel
from pegaflow.services.tier.fetches import Fetches, Owner
from pegaflow.services.tier.last_lookups import LastLookups
from pegaflow.services.tier.leases import Leases
from pegaflow.services.tier.open_lookup import OpenLookup, fits
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.sessions import Session
from pegaflow.services.tier.verifier import Verifier

HOP_S = 0.05
RETRY_S = 0.1
_SEALED = PageState.SEALED
SOON = 1e-9  # a time that has passed: ask again at the next look


class Lookups:
    """Lookups that have no answer yet. `metaserver`: is there one to ask?"""

    def __init__(
        self,
        pages: Pages,
        leases: Leases,
        out: list[Command],
        counts: dict[str, int],
        jobs: itertools.count[int],
        metaserver: bool,
        history: int = 0,
    ) -> None:
        self._pages, self._leases, self._out, self._counts, self._jobs = pages, leases, out, counts, jobs
        self.metaserver = metaserver
        self.fetches: Fetches  # these three are set by the tier; they refer to each other
        self.verifier: Verifier
        self.disk: DiskLevel
        self.open: dict[tuple[int, int], OpenLookup] = {}
        self._waiting: dict[bytes, dict[OpenLookup, None]] = {}  # in order, so that the same events give the same commands
        self._asks: dict[int, tuple[OpenLookup, list[bytes]]] = {}
        self._dirty: dict[OpenLookup, None] = {}
        self.last = LastLookups(history)
        self._unfinished: dict[OpenLookup, None] = {}

    # --- asked -------------------------------------------------------------------------------------------------------

    def lookup(self, asker: Any, session: Session, message: loads.Lookup, now: float) -> None:
        self.cancel(session, [message.lookup])
        deadline = now + message.wait_ms / 1e3
        lookup = OpenLookup(message.lookup, asker, session, message.keys, message.tails, deadline, message.expected)
        lookup.request, lookup.began = message.request, now
        self.open[session.number, message.lookup] = lookup
        self._advance(lookup, now)

    def cancel(self, session: Session, numbers: Iterable[int]) -> None:
        """Lookups that nobody wants any more; unknown ones are ignored."""
        for number in list(numbers):
            lookup = self.open.get((session.number, number))
            if lookup is not None:
                self._forget(lookup)
                for page in lookup.got:
                    page.refs -= 1
                    self._pages.free_if_done(page)
                self._pages.space.look(lookup.got)
                self.last.ended(lookup.ended(len(lookup.got) - (lookup.tail >= 0), "cancelled", self._pages.space.now))
                self._out.append(Reply(lookup.asker, lookup.nothing("cancelled")))

    def of_session(self, session: Session) -> list[int]:
        return [number for owner, number in self.open if owner == session.number]

    # --- woken -------------------------------------------------------------------------------------------------------

    def wake(self, key: bytes) -> None:
        """Something happened to this key: those who wait for it look again at the end of this turn."""
        for lookup in self._waiting.get(key, ()):
            self._dirty[lookup] = None

    def run(self, now: float) -> None:
        """Lets every woken lookup get as far as it can."""
        while self._dirty:
            lookup = next(iter(self._dirty))
            del self._dirty[lookup]
            if self.open.get((lookup.session.number, lookup.number)) is lookup:
                self._advance(lookup, now)

    def tick(self, now: float) -> None:
        for lookup in self.open.values():
            if now >= lookup.deadline or (lookup.retry_at and now >= lookup.retry_at):
                self._dirty[lookup] = None

    def located(self, ask: int, answer: Located | PegaflowError, now: float) -> None:
        lookup, keys = self._asks.pop(ask, (None, []))
        if lookup is None or lookup.asking != ask:
            return
        lookup.asking = 0
        if isinstance(answer, PegaflowError) or not fits(answer, keys):
            self._counts["locate_failed"] += 1
            lookup.failure = answer.code if isinstance(answer, PegaflowError) else ErrorCode.BAD_MESSAGE
            lookup.exhausted.update(keys)
        else:
            self._learn(lookup, keys, answer, now)
        if lookup.expected and lookup.exhausted:
            lookup.retry_at = now + RETRY_S
        self._dirty[lookup] = None

    def _learn(self, lookup: OpenLookup, keys: list[bytes], answer: Located, now: float) -> None:
        some = catalogue.SEALED in answer.states
        named = list(map(Owner, answer.nodes, answer.epochs, answer.requests))
        for i, key in enumerate(keys[: len(answer.states)]):
            at = answer.owners[i * answer.width : (i + 1) * answer.width]
            owners = [named[owner] for owner in at if owner != NO_OWNER]
            if lookup.refused:
                owners = [owner for owner in owners if not lookup.refuses(key, owner, now)]
            if owners:
                lookup.owners[key] = owners
            elif not some or (answer.states[i] == catalogue.GONE and not lookup.expected) or answer.states[i] == catalogue.SEALED:
                lookup.exhausted.add(key)  # the metaserver would not wait for it, or has waited

    def failed(self, keys: Sequence[bytes], owner: Owner, code: str) -> None:
        """This owner did not deliver these keys: those whom it was named to ask somebody else, and what is expected it again."""
        for key in keys:
            for lookup in self._waiting.get(key, ()):
                named = lookup.owners.get(key, [])
                if owner not in named:
                    continue  # it waits for somebody else's fetch and has not asked yet
                lookup.refuse(key, owner, code, self._pages.space.now)
                lookup.failure = code
                lookup.owners[key] = [other for other in named if other != owner]
                if not lookup.owners[key]:
                    lookup.exhausted.add(key)
                    if lookup.expected:
                        lookup.retry_at = lookup.retry_at or SOON

    # --- the walk ----------------------------------------------------------------------------------------------------

    def _advance(self, lookup: OpenLookup, now: float) -> None:
        if lookup.checking:
            return
        index, keys = self._pages.index, lookup.keys
        self._take_run(lookup, keys[len(lookup.got) :] if lookup.got else keys)
        if len(lookup.got) < len(keys):
            if self._wait_for(lookup, [keys[len(lookup.got)]], now):
                return
        else:
            for i, key in enumerate(lookup.tails):
                page = index.get(key)
                if page is not None and page.state is PageState.SEALED and page.verified:
                    self._take(lookup, page)
                    lookup.tail = i
                    break
            else:
                if lookup.tails and self._wait_for(lookup, lookup.tails, now):
                    return
        self._answer(lookup, now)

    def _take_run(self, lookup: OpenLookup, keys: Sequence[bytes]) -> None:
        """Takes the sealed pages at the head of `keys`."""
        # PERF: this loop and the columns of the answer are what a lookup of 750 keys costs; no calls per key.
        sealed, taken = PageState.SEALED, []
        for page in map(self._pages.index.get, keys):
            if page is None or page.state is not sealed or not page.verified:
                break
            page.refs += 1
            taken.append(page)
        if taken:
            self._pages.space.touch(taken)
        lookup.got += taken
        if lookup.fetching or lookup.reading:
            lookup.sources += bytes(lookup.source(page.key) for page in taken)
        else:
            lookup.sources += bytes(len(taken))

    def _take(self, lookup: OpenLookup, page: Page) -> None:
        page.refs += 1
        lookup.got.append(page)
        self._pages.space.touch(lookup.got[-2:])
        lookup.sources.append(lookup.source(page.key))

    def _wait_for(self, lookup: OpenLookup, candidates: Sequence[bytes], now: float) -> bool:
        """True: it makes sense to wait for one of the candidates, and everything that makes it come is under way."""
        self.verifier.first_use(self._doubtful(lookup, candidates))
        below = [key for key in candidates if key not in self._pages.index and self.disk.has(key)]
        started = bool(below) and self._read(lookup, below, now)  # also for those who do not wait: they ask again
        if now >= lookup.deadline:
            if not lookup.failure and self._hopeful(lookup, candidates):
                lookup.failure = ErrorCode.DEADLINE
            return False
        if lookup.retry_at and now >= lookup.retry_at:
            lookup.retry_at = 0.0
            lookup.exhausted.clear()
            if self._stale(lookup, candidates):
                self._asks.pop(lookup.asking)
                lookup.asking = 0
        for key in candidates:
            if key not in lookup.waits:
                lookup.waits.add(key)
                self._waiting.setdefault(key, {})[lookup] = None
        if any(key in self._pages.index for key in candidates):
            return True
        if below and not started:
            if any(self.disk.waits(key) for key in below):
                return True
            lookup.failure = ErrorCode.NO_SPACE
            return False
        if any(lookup.owners.get(key) for key in candidates):
            if self._fetch(lookup, now):
                return True
            lookup.failure = ErrorCode.NO_SPACE
            return False
        if lookup.asking:
            if self._stale(lookup, candidates) and not lookup.retry_at:
                lookup.retry_at = now + RETRY_S
            return True
        if self.metaserver and not all(key in lookup.exhausted for key in candidates):
            self._ask(lookup, now)
            return True
        return lookup.expected

    def _stale(self, lookup: OpenLookup, candidates: Sequence[bytes]) -> bool:
        """The metaserver was asked for other keys first: it waits for these, and says nothing of what follows them."""
        keys = self._asks[lookup.asking][1] if lookup.asking else []
        return bool(keys) and (keys[0] in self._pages.index or candidates[0] not in keys)

    def _doubtful(self, lookup: OpenLookup, candidates: Sequence[bytes]) -> list[Page]:
        """Pages of an earlier life that hold this lookup up, and all that would hold it up after them."""
        index = self._pages.index
        if all(page is None or page.verified for page in map(index.get, candidates)):
            return []
        return [page for page in map(index.get, self._rest(lookup)) if page is not None and not page.verified]

    def _hopeful(self, lookup: OpenLookup, candidates: Sequence[bytes]) -> bool:
        index, has = self._pages.index, self.disk.has
        return lookup.expected or any(key in index or has(key) or lookup.owners.get(key) for key in candidates)

    def _read(self, lookup: OpenLookup, below: Sequence[bytes], now: float) -> bool:
        """Reads what is on disk, up to the first key that is neither there nor in memory. False: no room even for the first."""
        keys: list[bytes] = []
        for key in self._rest(lookup) if len(lookup.got) < len(lookup.keys) else below:
            if key in self._pages.index:
                continue
            if not self.disk.has(key):
                break
            keys.append(key)
        started = self.disk.read(keys, now, lookup.got[-1] if lookup.got else None)
        lookup.reading.update(started)
        return bool(started)

    def _rest(self, lookup: OpenLookup) -> list[bytes]:
        return [*lookup.keys[len(lookup.got) :], *lookup.tails]

    def _ask(self, lookup: OpenLookup, now: float) -> None:
        index, owners, has = self._pages.index, lookup.owners, self.disk.has
        keys = [
            key
            for key in self._rest(lookup)
            if key not in index and not has(key) and not owners.get(key) and key not in lookup.exhausted
        ]
        lookup.asking = next(self._jobs)
        self._asks[lookup.asking] = (lookup, keys)
        wait_ms = max(0, int((lookup.deadline - now - HOP_S) * 1e3))
        tails = sum(key in lookup.tails for key in keys) if lookup.tails else 0
        self._out.append(Locate(lookup.asking, keys, wait_ms, lookup.expected, tails))

    def _fetch(self, lookup: OpenLookup, now: float) -> bool:
        """Fetches a batch, up to the first key that nobody is known to hold. False: there is no space even for the first.

        What is left comes in the turns that follow, so that the first READs run meanwhile and nobody else waits for all of it.
        """
        index, has, lengths = self._pages.index, self.disk.has, lookup.session.lengths()
        batch = self.fetches.batch(len(lookup.keys) + len(lookup.tails), lengths)
        runs, more = lookup.runs(batch, lambda key: key in index or has(key))
        full = lookup.keys[len(lookup.got) :]
        started = 0
        for owner, keys in runs:
            at = full.index(keys[0]) if keys[0] in full else len(full)
            before = self._pages.index.get(full[at - 1]) if at else lookup.got[-1] if lookup.got else None
            count = self.fetches.start(owner, keys, lengths, now, before)
            started += count
            lookup.fetching.update(keys[:count])
            for key in keys[:count]:
                if key not in lookup.waits:
                    lookup.waits.add(key)
                    self._waiting.setdefault(key, {})[lookup] = None
            if count < len(keys):
                break
        else:
            if more:
                self._unfinished[lookup] = None
        return started > 0

    def resume(self, now: float) -> None:
        """The next batch of every lookup that has more to fetch."""
        lookups, self._unfinished = self._unfinished, {}
        for lookup in lookups:
            if not lookup.checking and now < lookup.deadline:
                self._fetch(lookup, now)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _forget(self, lookup: OpenLookup) -> None:
        self.open.pop((lookup.session.number, lookup.number), None)
        self._dirty.pop(lookup, None)
        self._unfinished.pop(lookup, None)
        self._asks.pop(lookup.asking, None)
        for key in lookup.waits:
            waiting = self._waiting[key]
            waiting.pop(lookup, None)
            if not waiting:
                del self._waiting[key]

    def _answer(self, lookup: OpenLookup, now: float) -> None:
        if lookup.waits and self._cut(lookup, next((i for i, one in enumerate(lookup.got) if one.state is not _SEALED), None)):
            return  # found bad while it waited
        if self._verify(lookup):
            return
        self._forget(lookup)
        full = len(lookup.got) - (lookup.tail >= 0)
        whole = full == len(lookup.keys) and (lookup.tail >= 0 or not lookup.tails)
        reason = "" if whole else lookup.failure or ErrorCode.UNKNOWN
        self._counts["lookups"] += 1
        self._counts["lookup_us"] += int((now - lookup.began) * 1e6)
        self._counts["asked_pages"] += len(lookup.keys) + bool(lookup.tails)
        self.last.ended(lookup.ended(full, str(reason), now))
        if not lookup.got:
            self._out.append(Reply(lookup.asker, lookup.nothing(str(reason))))
            return
        self._counts["hit_pages"] += len(lookup.got)
        self._counts["hit_remote"] += lookup.sources.count(loads.REMOTE)
        self._counts["hit_disk"] += lookup.sources.count(loads.DISK)
        lease = self._leases.adopt(lookup.session.number, lookup.number, lookup.got, now, lookup.request)
        self._out.append(Reply(lookup.asker, lookup.hits(lease.number, full, str(reason))))

    def _verify(self, lookup: OpenLookup) -> bool:
        """True: some of the pages have to be verified before they are leased (`verify_on_load`); `_verified` goes on."""
        if not self.verifier.on_load:
            return False
        fresh = lookup.got[lookup.checked :]
        local = [page for page, source in zip(fresh, lookup.sources[lookup.checked :], strict=True) if source == loads.LOCAL]
        lookup.checked = len(lookup.got)
        chosen = self.verifier.sample(local)
        if chosen:
            lookup.checking = True
            self.verifier.check(chosen, lambda bad, now: self._verified(lookup, bad, now))
        return lookup.checking

    def _verified(self, lookup: OpenLookup, bad: list[Page], now: float) -> None:
        lookup.checking = False
        if self.open.get((lookup.session.number, lookup.number)) is not lookup:
            return
        if not self._cut(lookup, min(map(lookup.got.index, bad), default=None)):
            self._answer(lookup, now)

    def _cut(self, lookup: OpenLookup, worst: int | None) -> bool:
        """Gives back this page and all after it, whose bytes are bad, and looks again. False: None is bad."""
        if worst is None:
            return False
        gone = lookup.got[worst:]
        del lookup.got[worst:], lookup.sources[worst:]
        lookup.tail, lookup.checked = -1, worst
        for page in gone:
            page.refs -= 1
            self._pages.free_if_done(page)
        self._pages.space.look(gone)
        lookup.failure = ErrorCode.BAD_CHECKSUM
        self._dirty[lookup] = None  # the rest may be had elsewhere
        return True

    @property
    def behind(self) -> bool:
        """There is more to fetch: `resume`."""
        return bool(self._unfinished)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def validate(self) -> None:
        for key, lookups in self._waiting.items():
            assert lookups and all(key in lookup.waits for lookup in lookups)
        for (session, number), lookup in self.open.items():
            assert (lookup.session.number, lookup.number) == (session, number)
            assert all(page.refs > 0 and page.state is not PageState.PENDING for page in lookup.got)
        assert all(self.open.get((lookup.session.number, lookup.number)) is lookup for lookup in self._unfinished)
        assert all(lookup.asking == ask for ask, (lookup, _) in self._asks.items())
