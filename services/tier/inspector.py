"""Answers to whoever looks, pure: pages and their stories, lookups, leases, grants, namespaces. To look changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages import inspection
from pegaflow.common.wire.messages.inspection import MAX_ROWS, MAX_STEPS, NEVER, PageFlag, PageIs, Step
from pegaflow.services.tier.last_lookups import Ended
from pegaflow.services.tier.page import Page, PageState

if TYPE_CHECKING:
    from pegaflow.services.tier.state import TierState

_IS = {
    PageState.PENDING: PageIs.PENDING,
    PageState.SEALED: PageIs.SEALED,
    PageState.FETCHING: PageIs.FETCHING,
    PageState.STALE: PageIs.STALE,
    PageState.DOOMED: PageIs.LEAVING,
}
_OF_SESSION = frozenset({Step.GRANTED, Step.NO_SPACE, Step.REFUSED, Step.ABANDONED, Step.STALE})


class Inspector:
    """Over the parts of one tier; owns nothing."""

    def __init__(self, state: TierState) -> None:
        self._state = state
        self._answers: dict[type, Callable[[Any, float], Any]] = {
            inspection.Inspect: self._inspect,
            inspection.Story: self._story,
            inspection.Recall: self._recall,
            inspection.Leases: self._leases,
            inspection.Grants: self._grants,
            inspection.Namespaces: self._namespaces,
            inspection.Digest: self._digest,
        }

    def answer(self, message: Any, now: float) -> Any:
        """The reply; None: this is no question about what is here."""
        answers = self._answers.get(type(message))
        return answers(message, now) if answers is not None else None

    # --- pages -------------------------------------------------------------------------------------------------------

    def _inspect(self, message: inspection.Inspect, now: float) -> inspection.Inspected:
        state, wanted = self._state, set(message.keys)
        state.pages.space.settle()  # what was used is noted when it matters; now it does
        aside = {page.key: page for page in state.pages.aside if page.key in wanted}
        pages = [state.pages.index.get(key) or aside.get(key) for key in message.keys]
        leases, pins = self._held({id(page) for page in pages if page is not None and page.refs})
        records = [state.disk.index.records.get(key) for key in message.keys]
        copies = [page or record for page, record in zip(pages, records, strict=True)]
        sums = [
            list(page.checksums) if page and page.checksums else list(record.checksums) if record else []
            for page, record in zip(pages, records, strict=True)
        ]
        return inspection.Inspected(
            bytes(_IS[page.state] if page else PageIs.SEALED if copy else 0 for page, copy in zip(pages, copies, strict=True)),
            bytes(_flags(page, record is not None, now) for page, record in zip(pages, records, strict=True)),
            u64s(copy.size if copy else 0 for copy in copies),
            u32s(len(copy.lengths) if copy else 0 for copy in copies),
            u32s(page.refs if page else 0 for page in pages),
            u32s(leases[id(page)] for page in pages),
            u32s(pins[id(page)] for page in pages),
            u64s(self._used_ms(page, now) for page in pages),
            u64s(_left_ms(max(page.kept_until, page.hold_until), now) if page else NEVER for page in pages),
            u32s(map(len, sums)),
            b"".join(one for some in sums for one in some),
            [state.sessions.name(page.session) if page and page.session else "" for page in pages],
            [page.request if page else "" for page in pages],
        )

    def _held(self, held: set[int]) -> tuple[Counter[int], Counter[int]]:
        leases, pins = Counter[int](), Counter[int]()
        if held:
            for lease in self._state.leases.open.values():
                (leases if lease.session else pins).update(id(page) for page in lease.pages if id(page) in held)
        return leases, pins

    def _used_ms(self, page: Page | None, now: float) -> int:
        used = self._state.turns.time(page.used_at, now) if page is not None and page.used_at else None
        return NEVER if used is None else _ms(now - used)

    def _story(self, message: inspection.Story, now: float) -> inspection.Told:
        chronicle = self._state.pages.chronicle
        steps = chronicle.story(message.key)[-MAX_STEPS:]
        return inspection.Told(
            u64s(_ms(now - step.at) for step in steps),
            bytes(step.step for step in steps),
            [self._who(step.step, step.who) for step in steps],
            _ms(now - chronicle.since),
        )

    def _who(self, step: Step, who: tuple[str | int, ...]) -> str:
        """For people: whom the parts of a step name."""
        names = self._state.sessions.name
        if step in _OF_SESSION:
            session, *rest = who
            return " ".join([names(int(session)), *map(str, rest)])
        if step is Step.EVICTED:
            why, session, request = who
            return f"{why}: for {names(int(session))} {request}" if session else str(why)
        return " ".join(map(str, who))

    # --- lookups -----------------------------------------------------------------------------------------------------

    def _recall(self, message: inspection.Recall, now: float) -> inspection.Recalled:
        lookups = self._state.lookups
        waiting = [
            one.ended(len(one.got) - (one.tail >= 0), "waiting", now)
            for one in reversed(lookups.open.values())
            if one.request.startswith(message.request)
        ]
        rows: list[Ended] = [*waiting[:MAX_ROWS], *islice(lookups.last.of(message.request), max(0, MAX_ROWS - len(waiting)))]
        return inspection.Recalled(
            [row.request for row in rows],
            [self._state.sessions.name(row.session) for row in rows],
            [row.fingerprint.hex() for row in rows],
            u64s(_ms(now - row.at) for row in rows),
            u64s(_ms(row.waited_s) for row in rows),
            u32s(row.asked for row in rows),
            u32s(row.hits for row in rows),
            u32s(row.tails for row in rows),
            u32s(row.tail_hit for row in rows),
            u32s(row.fetched for row in rows),
            u32s(row.read for row in rows),
            [row.reason for row in rows],
            [row.missing.hex() for row in rows],
            _ms(now - lookups.last.since(now)),
        )

    # --- who holds what ----------------------------------------------------------------------------------------------

    def _leases(self, _: inspection.Leases, now: float) -> inspection.LeaseList:
        state = self._state
        rows = list(islice(state.leases.open.values(), MAX_ROWS))
        return inspection.LeaseList(
            u64s(lease.number for lease in rows),
            [state.sessions.name(lease.session) if lease.session else "" for lease in rows],
            [lease.reader for lease in rows],
            [lease.request for lease in rows],
            u32s(len(lease.pages) for lease in rows),
            u64s(sum(page.size for page in lease.pages) for lease in rows),
            u64s(_ms(now - lease.at) for lease in rows),
            u64s(_left_ms(lease.expires, now) for lease in rows),
            len(state.leases.open),
        )

    def _grants(self, _: inspection.Grants, now: float) -> inspection.GrantList:
        state = self._state
        rows = list(islice(state.saves.grants.values(), MAX_ROWS))
        pages = [list({id(page): page for page, _ in grant.pages.values()}.values()) for grant in rows]
        holders = [[member for member in grant.session.members.values() if grant.number in member.grants] for grant in rows]
        return inspection.GrantList(
            u64s(grant.number for grant in rows),
            u64s(grant.intent for grant in rows),
            [grant.session.engine for grant in rows],
            [", ".join(sorted({page.request for page in mine if page.request})[:8]) for mine in pages],
            [", ".join(f"{one.role} {one.rank} (process {one.pid})" for one in members) for members in holders],
            u32s(map(len, pages)),
            u64s(sum(page.size for page in mine) for mine in pages),
            u64s(_ms(now - grant.at) for grant in rows),
            u64s(_ms(now - min((one.alive_at for one in members), default=now)) for members in holders),
            len(state.saves.grants),
        )

    def _namespaces(self, _: inspection.Namespaces, __: float) -> inspection.NamespaceList:
        state = self._state
        spaces, known = state.pages.space.shares.by_name, state.sessions.known
        disk = state.pages.below_by
        engines: dict[bytes, list[str]] = {}
        for session in state.sessions.by_number.values():
            if session.fingerprint:
                engines.setdefault(session.fingerprint, []).append(session.engine)
        names = list(dict.fromkeys([*engines, *spaces, *disk, *known]))[:MAX_ROWS]
        return inspection.NamespaceList(
            [name.hex() for name in names],
            [", ".join(engines.get(name, ())) for name in names],
            ["\n".join(f"{factor}={value}" for factor, value in sorted(known.get(name, {}).items())) for name in names],
            u64s(spaces[name].pages if name in spaces else 0 for name in names),
            u64s(spaces[name].used * GRANULE if name in spaces else 0 for name in names),
            u64s(disk[name] for name in names),
        )

    def _digest(self, _: inspection.Digest, __: float) -> inspection.Digests:
        place, pages = self._state.place, self._state.pages
        beat = pages.beat()
        head, sealed, pending = u64s([pages.announced.head]), u64s([beat.sealed]), u64s([beat.pending])
        return inspection.Digests([place.node], u64s([place.epoch]), head, beat.digest, sealed, pending, b"\0")


def _flags(page: Page | None, on_disk: bool, now: float) -> int:
    flags = PageFlag(0)
    if page is not None:
        flags |= PageFlag.MEMORY
        flags |= PageFlag.VERIFIED if page.verified and page.state is PageState.SEALED else PageFlag(0)
        flags |= PageFlag.REPLICA if page.replica else PageFlag(0)
        flags |= PageFlag.KEPT if page.kept_until > now else PageFlag(0)
    return flags | (PageFlag.DISK if on_disk else PageFlag(0))


def _ms(seconds: float) -> int:
    return max(0, int(seconds * 1e3))


def _left_ms(until: float, now: float) -> int:
    """NEVER: it has no end, or has ended."""
    return NEVER if until == float("inf") or until <= now else _ms(until - now)
