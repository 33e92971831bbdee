"""Saving, pure: intent → grant → written by every shard → checksum → sealed (docs/protocol.md 2)."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.inspection import Step
from pegaflow.common.wire.messages.saves import (
    GRANTED,
    HAVE,
    KEY_MARK_BYTES,
    NO_SPACE,
    PENDING,
    REFUSED,
    Abandoned,
    Grant,
    Intent,
    IntentSeen,
    Written,
    key_mark,
    keys_digest,
)
from pegaflow.services.tier.commands import Command, Hash, Publish
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import KEEP_S, Pages
from pegaflow.services.tier.sessions import Member, Session
from pegaflow.services.tier.verifier import JOB_BYTES, Verifier

TAP = b"i"
MAX_CHAINS = 4096  # requests whose last page is remembered


@dataclass(slots=True, eq=False)
class OpenGrant:
    """A grant under which somebody may still write. `event`: its number on the session's topic."""

    number: int
    session: Session
    event: int
    intent: int = 0
    at: float = 0.0
    pages: dict[int, tuple[Page, int]] = field(default_factory=dict)  # slot → page, shard


class _Writers(NamedTuple):
    """Who writes the parts of a page, by shard, with their numbers and the words of their locks."""

    members: list[Member]
    numbers: list[int]
    holders: list[int]


def _writers(session: Session, stripe: int) -> _Writers | None:
    """None: not every shard has a rank."""
    found = [session.writer(shard, stripe) for shard in range(session.shards)]
    members = [member for member in found if member is not None]
    if len(members) != session.shards:
        return None
    return _Writers(members, [member.number for member in members], [member.holder for member in members])


class Saves:
    """Grants that are open, and the checksum jobs of pages whose bytes are in."""

    def __init__(
        self,
        pages: Pages,
        out: list[Command],
        counts: dict[str, int],
        jobs: itertools.count[int],
        wake: Callable[[bytes], None],
        verifier: Verifier,
    ) -> None:
        self.pages, self._out, self._counts, self._jobs, self._wake = pages, out, counts, jobs, wake
        self._verifier = verifier
        self.grants: dict[int, OpenGrant] = {}
        self.hashing: dict[int, list[Page]] = {}
        self.closed = False
        """The tier drains: nothing new is granted."""
        self._ends: OrderedDict[tuple[int, str], Page] = OrderedDict()

    def intent(self, session: Session, message: Intent, now: float) -> None:
        """Answers an intent with a grant at once; a lack of space is an answer, not a reason to wait.

        Keys of one request continue each other, from intent to intent. What follows a key without space gets none either:
        nobody could find it.
        """
        lengths = session.lengths()
        statuses = bytearray()
        grant = OpenGrant(next(self.pages.grants), session, session.events + 1, message.intent, now)
        positions, slots, generations, stripes = u32s(), u32s(), u64s(), bytearray()
        have: list[Page] = []
        ends: dict[int, Page | None] = {}
        full: set[int] = set()
        writers: dict[int, _Writers | None] = {}
        doubtful: list[Page] = []
        for position, key in enumerate(message.keys):
            page = self.pages.index.get(key)
            owner = message.owners[position]
            if owner not in ends:
                ends[owner] = self._ends.get((session.number, message.requests[owner]))
            if page is not None:
                status = HAVE if page.state is PageState.SEALED and page.verified else PENDING
                if not page.verified:
                    doubtful.append(page)
                if status == HAVE:
                    page.request, page.session = message.requests[owner], session.number
                    self.pages.space.follows(page, ends[owner])
                    have.append(page)
            elif self.closed:
                self._counts["refused_draining"] += 1
                status = REFUSED
            elif owner in full:
                self._counts["no_space"] += 1
                status = NO_SPACE
            else:
                stripe = message.stripes[position] if message.stripes else 0
                if stripe not in writers:
                    writers[stripe] = _writers(session, stripe) if lengths else None
                status = self._grant(session, grant, message, position, lengths, writers[stripe], ends[owner])
                if status == NO_SPACE:
                    full.add(owner)
                elif status == GRANTED:
                    page = self.pages.index[key]
                    positions.append(position)
                    stripes.append(stripe)
                    slots.extend(page.slots)
                    generations.extend(page.generations)
            ends[owner] = page
            statuses.append(status)
        self._note(session, message, statuses, positions)
        self._verifier.first_use(doubtful)
        self._remember(session, message, ends)
        self.pages.space.hold(have, now + KEEP_S)
        self.pages.space.touch(have, chain=False)
        digest = keys_digest(list(message.keys))
        if grant.pages:
            self.grants[grant.number] = grant
        self._counts["granted"] += len(positions)
        answer = Grant(
            message.intent,
            grant.number,
            digest,
            bytes(statuses),
            session.shards,
            positions,
            slots,
            generations,
            b"".join(key_mark(message.keys[position]) for position in positions),
            bytes(stripes) if any(stripes) else b"",
        )
        self.publish(session, answer)
        self._out.append(
            Publish(TAP, IntentSeen(session.number, message.intent, message.keys, bytes(statuses), message.requests))
        )

    def _grant(
        self,
        session: Session,
        grant: OpenGrant,
        message: Intent,
        position: int,
        lengths: tuple[int, ...],
        writers: _Writers | None,
        parent: Page | None,
    ) -> int:
        key = message.keys[position]
        if writers is None or not key.startswith(session.fingerprint):
            self._counts["refused"] += 1
            return REFUSED
        request = message.requests[message.owners[position]]
        page = self.pages.reserve(key, PageState.PENDING, lengths, request, session.number, parent)
        if page is None:
            return NO_SPACE
        page.rows, page.grant, page.order = message.rows[position], grant.number, position
        page.writers = list(writers.numbers)
        self.pages.store_granted(page, writers.holders)
        for shard, slot in enumerate(page.slots):
            grant.pages[slot] = (page, shard)
            writers.members[shard].grants.add(grant.number)
        return GRANTED

    def _note(self, session: Session, message: Intent, statuses: bytearray, granted: Sequence[int]) -> None:
        """The first step of each page's story; what the tier has already, or is promised, begins none."""
        keys, owners, requests = message.keys, message.owners, message.requests
        if len(granted) == len(keys) and len(requests) == 1:
            self.pages.chronicle.note(Step.GRANTED, keys, (session.number, requests[0]))
            return
        for status, step in ((GRANTED, Step.GRANTED), (NO_SPACE, Step.NO_SPACE), (REFUSED, Step.REFUSED)):
            if status not in statuses:
                continue
            found: dict[int, list[bytes]] = {}
            for position, (key, one) in enumerate(zip(keys, statuses, strict=True)):
                if one == status:
                    found.setdefault(owners[position], []).append(key)
            for owner, mine in found.items():
                who = (session.number, requests[owner])
                self.pages.chronicle.note(step, mine, (*who, "the tier drains") if self.closed and step is Step.REFUSED else who)

    def _remember(self, session: Session, message: Intent, ends: dict[int, Page | None]) -> None:
        for owner, page in ends.items():
            chain = (session.number, message.requests[owner])
            self._ends.pop(chain, None)
            if page is not None:
                self._ends[chain] = page
        while len(self._ends) > MAX_CHAINS:
            self._ends.popitem(last=False)

    def publish(self, session: Session, message: Grant) -> None:
        session.events += 1
        self._out.append(Publish(session.topic, message))

    def ended(self, session: Session, member: Member, message: Written | Abandoned) -> None:
        """A rank's last word about slots. Whatever does not fit exactly is ignored and counted."""
        grant = self.grants.get(message.grant)
        if grant is None or grant.session is not session:
            self._counts["stale_words"] += len(message.slots)
            return
        whole: list[Page] = []
        for i, slot in enumerate(message.slots):
            page, shard = grant.pages.get(slot, (None, 0))
            mark = message.marks[KEY_MARK_BYTES * i : KEY_MARK_BYTES * (i + 1)]
            if (
                page is None
                or page.writers[shard] != member.number
                or page.generations[shard] != message.generations[i]
                or key_mark(page.key) != mark
            ):
                self._counts["stale_words"] += 1
                continue
            if self._end(grant, slot, page, shard, isinstance(message, Written), "by its rank"):
                whole.append(page)
        self._close(grant)
        self._hash(whole)

    def _end(self, grant: OpenGrant, slot: int, page: Page, shard: int, written: bool, why: str) -> bool:
        """True: all bytes of the page are in. `why` it was abandoned, if it was."""
        del grant.pages[slot]
        page.writers[shard] = 0
        if not written:
            self._counts["abandoned"] += 1
            self.pages.chronicle.one(Step.ABANDONED, page.key, (grant.session.number, why))
            self.pages.doom(page)
            return False
        page.unwritten.discard(shard)
        if page.unwritten or page.state is PageState.DOOMED:
            self.pages.free_if_done(page)
            return False
        page.refs += 1
        return True

    def _hash(self, pages: list[Page]) -> None:
        """Checksums for whole pages, in jobs of at most JOB_BYTES, so that the first are visible before the last are read."""
        start = size = 0
        for i, page in enumerate(pages):
            size += page.size
            if size >= JOB_BYTES or i == len(pages) - 1:
                job, batch = next(self._jobs), pages[start : i + 1]
                self.hashing[job] = batch
                slots = tuple(slot for one in batch for slot in one.slots)
                lengths = tuple(length for one in batch for length in one.lengths)
                self._out.append(Hash(job, slots, lengths))
                start, size = i + 1, 0

    def _close(self, grant: OpenGrant) -> None:
        holders = {page.writers[shard] for page, shard in grant.pages.values()}
        for member in grant.session.members.values():
            if member.number not in holders:
                member.grants.discard(grant.number)
        if not grant.pages:
            self.grants.pop(grant.number, None)

    def hashed(self, job: int, checksums: Sequence[bytes] | None) -> None:
        """The checksums of a job's pages, 16 bytes per slot: seals them, unless the key is sealed already. None: not saved."""
        at, sealed = 0, list[bytes]()
        for page in self.hashing.pop(job):
            count = len(page.slots)
            mine = checksums[at : at + count] if checksums is not None else ()
            at += count
            page.refs -= 1
            if page.state is PageState.DOOMED:
                self.pages.free_if_done(page)
            elif not mine:
                self._counts["hash_failed"] += 1
                self.pages.chronicle.one(Step.HASH_FAILED, page.key)
                self.pages.doom(page)
            elif self.pages.seal(page, mine):
                self._counts["sealed"] += 1
                self._counts["sealed_bytes"] += page.size
                sealed.append(page.key)
            self._wake(page.key)
        self.pages.chronicle.note(Step.SEALED, sealed)

    def end_for(self, session: Session, member: Member, grants: set[int], why: str) -> None:
        """Everything this member still holds under these grants counts as abandoned: it said so, or it is dead."""
        for number in sorted(grants):
            grant = self.grants.get(number)
            if grant is None:
                member.grants.discard(number)
                continue
            for slot, (page, shard) in list(grant.pages.items()):
                if page.writers[shard] == member.number and grant.session is session:
                    self._end(grant, slot, page, shard, False, why)
                    self._wake(page.key)
            self._close(grant)

    def end_some(self, session: Session, member: Member, most: int, why: str) -> int:
        """So many slots of a member that is dead or has left; how many. It has none any more when it has no grants."""
        ended = 0
        for number in list(itertools.islice(member.grants, most)):
            grant = self.grants.get(number)
            if grant is None:
                member.grants.discard(number)
                continue
            held = [slot for slot, (page, shard) in grant.pages.items() if page.writers[shard] == member.number]
            for slot in held[: most - ended]:
                page, shard = grant.pages[slot]
                self._end(grant, slot, page, shard, False, why)
                self._wake(page.key)
                ended += 1
            self._close(grant)
            if ended >= most:
                break
        return ended

    def distrust(self, session: Session, most: int) -> bool:
        """The session has been silent: its promises are gone for lookups, some at a time, its slots stay reserved.

        False: there are more.
        """
        for grant in self.grants.values():
            if grant.session is not session:
                continue
            for page, _ in grant.pages.values():
                if page.state is PageState.PENDING:
                    if not most:
                        return False
                    most -= 1
                    self.pages.stale(page)
                    self._counts["promises_stale"] += 1
                    self.pages.chronicle.one(Step.STALE, page.key, (session.number,))
                    self._wake(page.key)
        return True

    def validate(self) -> None:
        for number, grant in self.grants.items():
            assert grant.number == number and grant.pages
            for slot, (page, shard) in grant.pages.items():
                assert page.slots[shard] == slot
                holder = grant.session.members.get(page.writers[shard])
                assert holder is not None and number in holder.grants, "a grant without a living holder"
        for pages in self.hashing.values():
            assert pages and all(page.refs > 0 for page in pages)
