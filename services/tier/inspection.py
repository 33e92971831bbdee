"""What a tier's state holds, for people, and whether its parts fit together, for tests."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.page import PageState

if TYPE_CHECKING:
    from pegaflow.services.tier.state import TierState


def dump(state: TierState) -> dict[str, Any]:
    """Counts of everything that is held."""
    leases = Counter(lease.session for lease in state.leases.open.values())
    lookups = Counter(number for number, _ in state.lookups.open)
    return {
        "pages": _states(state),
        "aside": len(state.pages.aside),
        "announced": {"sealed": state.pages.announced.sealed, "pending": state.pages.announced.pending},
        "references": _references(state),
        "free_bytes": state.pages.allocator.free_granules() * GRANULE,
        "backed_bytes": state.pages.allocator.backed * GRANULE,
        "space": state.pages.space.view(),
        "sessions": [
            {
                "session": f"{session.number:016x}",
                "engine": session.engine,
                "fingerprint": session.fingerprint.hex(),
                "stale": session.stale,
                "complete": session.complete,
                "leases": leases[session.number],
                "lookups": lookups[session.number],
                "members": [
                    {
                        "role": m.role,
                        "rank": m.rank,
                        "pid": m.pid,
                        "next": m.cursor.next,
                        "grants": len(m.grants),
                        "silent_ms": int((state.pages.space.now - m.alive_at) * 1e3),
                    }
                    for m in session.members.values()
                ],
            }
            for session in state.sessions.by_number.values()
        ],
        "grants": len(state.saves.grants),
        "hashing": len(state.saves.hashing),
        "verifying": len(state.verifier.open),
        "unverified": state.pages.unverified,
        "adoption": state.adoption.view(),
        "leases": sum(lease.session != 0 for lease in state.leases.open.values()),
        "pins": sum(lease.session == 0 for lease in state.leases.open.values()),
        "leased_permille": state.leases.load()[1],
        "lookups": len(state.lookups.open),
        "waiters": state.lookups.waiting,
        "fetches": len(state.fetches.open),
        "disk": state.disk.view(),
        "drain": state.draining.view(),
        "history": {
            "bytes": state.pages.chronicle.bytes,
            "steps": state.pages.chronicle.noted,
            "lookups": len(state.lookups.last),
        },
        "counts": dict(state.counts),
    }


def _states(state: TierState) -> dict[str, int]:
    """Pages by state. Who is not sealed is in somebody's hands, and they are few: all others of the index are sealed."""
    index = state.pages.index
    moving = {page for grant in state.saves.grants.values() for page, _ in grant.pages.values()}
    moving.update(page for pages in state.saves.hashing.values() for page in pages)
    moving.update(page for fetch in state.fetches.open.values() for page in fetch.pages)
    moving.update(state.disk.held())
    sealed = PageState.SEALED
    counts = Counter(str(page.state) for page in moving if page.state is not sealed and index.get(page.key) is page)
    counts[str(sealed)] = len(index) - counts.total()
    counts.update(str(page.state) for page in state.pages.aside)
    return dict(+counts)


def _references(state: TierState) -> int:
    """To pages, counted where they are held: nobody waits for a walk over all pages."""
    return (
        sum(len(lease.pages) for lease in state.leases.open.values())
        + sum(len(fetch.pages) for fetch in state.fetches.open.values())
        + sum(len(lookup.got) for lookup in state.lookups.open.values())
        + sum(map(len, state.saves.hashing.values()))
        + len(state.disk.held())
        + len(state.verifier.held())
    )


def validate(state: TierState) -> None:
    """Each part by itself, and that every reference to a page is somebody's."""
    state.pages.validate()
    state.pages.chronicle.validate()
    state.lookups.last.validate()
    state.sessions.validate()
    state.leases.validate()
    state.saves.validate()
    state.lookups.validate()
    state.fetches.validate()
    state.verifier.validate()
    state.disk.validate()
    state.adoption.validate()
    state.draining.handover.validate()
    state.departures.validate()
    assert _states(state) == Counter(str(page.state) for page in [*state.pages.index.values(), *state.pages.aside])
    refs: Counter[int] = Counter()
    for lease in state.leases.open.values():
        refs.update(id(page) for page in lease.pages)
    for fetch in state.fetches.open.values():
        refs.update(id(page) for page in fetch.pages)
    for lookup in state.lookups.open.values():
        refs.update(id(page) for page in lookup.got)
    refs.update(map(id, state.disk.held()))
    refs.update(map(id, state.verifier.held()))
    for pages in state.saves.hashing.values():
        refs.update(id(page) for page in pages)
    assert refs.total() == _references(state)
    for page in [*state.pages.index.values(), *state.pages.aside]:
        assert page.refs == refs[id(page)], f"page {page.key.hex()} has {page.refs} references, {refs[id(page)]} are known"
