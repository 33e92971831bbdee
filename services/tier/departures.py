"""Who leaves and who falls silent, pure: what a process that is dead, has left or says nothing still had of this tier.

dead, left ──▶ its grants end, some slots per event ──▶ forgotten; with the last member the session      its leases too
silent     ──▶ its promises are not believed any more, some per tick; its slots stay its own
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pegaflow.services.tier.commands import CloseTopic, Command, Forget, Log
from pegaflow.services.tier.leases import Leases
from pegaflow.services.tier.lookups import Lookups
from pegaflow.services.tier.saves import Saves
from pegaflow.services.tier.sessions import Member, Session, Sessions

SLOTS = 1024
"""Dealt with in one event: the end of an engine that saves very much must not be felt by the others."""


class _Leaving(NamedTuple):
    session: Session
    member: Member
    unlink: bool
    why: str


class Departures:
    """`beat(session)`: tells a session's members who is left; `changed()`: a session has ended."""

    def __init__(
        self,
        sessions: Sessions,
        saves: Saves,
        lookups: Lookups,
        leases: Leases,
        out: list[Command],
        counts: dict[str, int],
        beat: Callable[[Session], None],
        changed: Callable[[], None],
    ) -> None:
        self._sessions, self._saves, self._lookups, self._leases = sessions, saves, lookups, leases
        self._out, self._counts, self._beat, self._changed = out, counts, beat, changed
        self._leaving: deque[_Leaving] = deque()
        self._doubted: dict[Session, None] = {}

    @property
    def going_on(self) -> bool:
        """The next tick has something to do."""
        return bool(self._leaving or self._doubted)

    def proven(self, number: int, member_number: int) -> None:
        """Its lock is free: it is dead."""
        session = self._sessions.by_number.get(number)
        member = session.members.get(member_number) if session is not None else None
        if session is None or member is None:
            self._out.append(Forget(number, member_number, True))
            return
        if self._is_leaving(member):
            return
        self._counts["members_dead"] += 1
        self._out.append(Log("member_dead", {"engine": session.engine, "role": member.role, "rank": member.rank}))
        self.leave(session, member, unlink=True, why="its process died")

    def leave(self, session: Session, member: Member, unlink: bool, why: str) -> None:
        """It writes and loads no more. A member whose slots are not all dealt with stays one for that long."""
        if self._is_leaving(member):
            return
        if member.role == "scheduler":
            self._lookups.cancel(session, self._lookups.of_session(session))
            self._leases.lose(session.number)
        self._leaving.append(_Leaving(session, member, unlink, why))
        if len(self._leaving) == 1:
            self._end_some()

    def _is_leaving(self, member: Member) -> bool:
        return any(one.member is member for one in self._leaving)

    def tick(self, now: float) -> None:
        self._end_some()
        for session in self._sessions.by_number.values():
            # Also while it is stale: those of its processes that live may go on promising.
            if not self._sessions.believed(session, now) and not (session.stale and session.doubted == session.events):
                session.stale, session.doubted = True, session.events
                self._doubted[session] = None
        for session in list(self._doubted):
            if not session.stale or self._saves.distrust(session, SLOTS):
                del self._doubted[session]

    def _end_some(self) -> None:
        budget = SLOTS
        while self._leaving and budget > 0:
            session, member, unlink, why = self._leaving[0]
            budget -= self._saves.end_some(session, member, budget, why)
            if member.grants:
                return
            self._leaving.popleft()
            self._out.append(Forget(session.number, member.number, unlink))
            if self._sessions.leave(session, member):
                self._changed()
                self._out.append(CloseTopic(session.topic))
            else:
                self._beat(session)

    def validate(self) -> None:
        for session, member, _, _ in self._leaving:
            assert session.members.get(member.number) is member
