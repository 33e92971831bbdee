"""Sessions, pure: which engines are attached, with which processes, and what each of them published up to now.

A session is one engine. Its members are the scheduler half and the ranks, each a process of its own with its own lock and its own
message numbers. A member ends by being proven dead, by detaching, or with the tier; never by a timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pegaflow.common.bus.reliable import ReceiveCursor
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import LAYOUT_BYTES, Attach, SessionList
from pegaflow.common.wire.version import PROTOCOL

PROMISE_STALE_S = 1.5
K = TypeVar("K")
V = TypeVar("V")
MAX_KNOWN = 256
"""Fingerprints and sessions that are remembered when their engines have left."""


def holder_word(nonce: bytes) -> int:
    """A process by its lock's nonce, as the slot table names it: 64 bits, even, never 0."""
    return (int.from_bytes(nonce[:8], "little") | 2) & ~1


@dataclass(slots=True, eq=False)
class Member:
    """One attached process. `page`: a rank's layout digest and bytes; `grants`: those under which it may still write.

    `holder` names it in the slot table, for every life of the tier: from its lock's nonce, odd if a device copies for it.
    """

    number: int
    role: str
    rank: int
    shard: int
    stripe: int
    nonce: bytes
    pid: int
    page: tuple[bytes, int]
    cursor: ReceiveCursor
    alive_at: float
    holder: int = 0
    grants: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Session:
    """One engine. `layouts` and `page_bytes` are per shard, as the scheduler half said; `events` is the head of its topic;
    `doubted`: what that was when its promises were last taken back."""

    number: int
    engine: str
    token: bytes
    topic: bytes
    base: bytes
    shards: int
    stripes: int
    fingerprint: bytes = b""
    factors: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    layouts: dict[int, bytes] = field(default_factory=dict)
    page_bytes: dict[int, int] = field(default_factory=dict)
    members: dict[int, Member] = field(default_factory=dict)
    events: int = 0
    stale: bool = False
    doubted: int = -1

    @property
    def scheduler(self) -> Member | None:
        return next((member for member in self.members.values() if member.role == "scheduler"), None)

    @property
    def complete(self) -> bool:
        """The scheduler half and every rank are attached."""
        return len(self.members) == 1 + self.shards * self.stripes

    def writer(self, shard: int, stripe: int) -> Member | None:
        """The rank that writes this shard of a key of this stripe."""
        for member in self.members.values():
            if member.role == "rank" and member.shard == shard and member.stripe == stripe:
                return member
        return None

    def lengths(self) -> tuple[int, ...]:
        """Bytes of one page per shard; empty until the scheduler half has attached."""
        return tuple(self.page_bytes[shard] for shard in range(self.shards)) if len(self.page_bytes) == self.shards else ()


def _remember(known: dict[K, V], name: K, value: V) -> None:
    known.pop(name, None)
    known[name] = value
    while len(known) > MAX_KNOWN:
        del known[next(iter(known))]


def _factors(lines: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _names_pages(factors: dict[str, str]) -> bool:
    """They are texts of another process: an engine whose factors are others is left out, not believed."""
    sizes = [factors.get(name, "") for name in ("block_size", "hash_block_size")]
    none_hash = factors.get("none_hash", "")
    hexadecimal = bool(none_hash) and len(none_hash) % 2 == 0 and set(none_hash) <= set("0123456789abcdef")
    return (
        all(size.isascii() and size.isdigit() and len(size) < 10 for size in sizes)
        and hexadecimal
        and "hash_algorithm" in factors
    )


def _pages(ask: Attach) -> list[tuple[bytes, int]]:
    """Layout digest and bytes of a page, per shard."""
    cuts = [ask.layouts[LAYOUT_BYTES * i : LAYOUT_BYTES * (i + 1)] for i in range(len(ask.page_bytes))]
    return list(zip(cuts, ask.page_bytes, strict=True))


def _check_rank(engine: str, shard: int, rank: tuple[bytes, int], said: tuple[bytes, int]) -> None:
    if rank != said:
        raise RemoteError(
            ErrorCode.LAYOUT_MISMATCH,
            f"shard {shard} of engine {engine}: the rank has layout {_hex(rank[0])} with {rank[1]} bytes a page,"
            f" its scheduler half says {_hex(said[0])} with {said[1]}",
        )


def _hex(value: bytes) -> str:
    return value.hex() or "none"


class Sessions:
    """All sessions of this tier's life. `random` makes tokens and session numbers (16 bytes each call)."""

    def __init__(self, topic: Callable[[int], bytes], random: Callable[[int], bytes], fingerprint: bytes = b"") -> None:
        self._topic, self._random = topic, random
        self._only = fingerprint
        self.by_number: dict[int, Session] = {}
        self._by_engine: dict[str, Session] = {}
        self.known: dict[bytes, dict[str, str]] = {}
        """Fingerprint → factors, of engines that are or were attached."""
        self._names: dict[int, str] = {}

    def attach(self, ask: Attach, now: float) -> tuple[Session, Member, bool]:
        """Lets a process in. Returns (session, member, new?). Raises `RemoteError` saying both values of what does not fit."""
        if ask.protocol != PROTOCOL:
            raise RemoteError(
                ErrorCode.PROTOCOL_MISMATCH,
                f"the engine's connector speaks protocol {ask.protocol} (pegaflow {ask.package}), the tier {PROTOCOL}",
            )
        session = self._by_engine.get(ask.engine)
        if session is not None:
            for member in session.members.values():
                if member.nonce == ask.nonce:
                    member.alive_at = now
                    # The process gave up what it had not got through; what that would have ended, `alive` ends.
                    member.cursor.next = max(member.cursor.next, ask.first_seq)
                    return session, member, False
            self._check_same(session, ask)
        else:
            session = self._new(ask)
        if ask.role == "scheduler":
            self._check_fingerprint(ask)
            session.fingerprint = ask.fingerprint
            session.factors = _factors(list(ask.factors))
            session.versions = {"pegaflow": ask.package, **_factors(list(ask.versions))}
            _remember(self.known, ask.fingerprint, session.factors)
            for shard, (layout, page_bytes) in enumerate(_pages(ask)):
                session.layouts[shard], session.page_bytes[shard] = layout, page_bytes
        member = self._join(session, ask, now)
        self.by_number[session.number] = self._by_engine[ask.engine] = session
        _remember(self._names, session.number, ask.engine)
        return session, member, True

    def _new(self, ask: Attach) -> Session:
        number = int.from_bytes(self._random(8), "little") or 1
        topic = self._topic(number)
        return Session(number, ask.engine, self._random(16), topic, ask.base, ask.shards, ask.stripes)

    def _join(self, session: Session, ask: Attach, now: float) -> Member:
        number = max(session.members, default=0) + 1
        cursor = ReceiveCursor(ask.first_seq)
        holder = holder_word(ask.nonce) | ask.gpu
        member = Member(
            number, ask.role, ask.rank, ask.shard, ask.stripe, ask.nonce, ask.pid, _pages(ask)[0], cursor, now, holder
        )
        session.members[number] = member
        return member

    def _check_fingerprint(self, ask: Attach) -> None:
        if len(ask.fingerprint) != 16:
            raise RemoteError(ErrorCode.BAD_MEMBER, "the scheduler half says no fingerprint")
        if self._only and ask.fingerprint != self._only:
            raise RemoteError(
                ErrorCode.FINGERPRINT_MISMATCH,
                f"the engine's fingerprint is {_hex(ask.fingerprint)}, this tier takes only {_hex(self._only)}"
                f" (the engine's factors: {', '.join(ask.factors)})",
            )
        for other in self.by_number.values():
            if other.fingerprint != ask.fingerprint or other.engine == ask.engine:
                continue
            mine = [layout for layout, _ in _pages(ask)]
            theirs = [other.layouts[shard] for shard in range(other.shards)]
            if mine != theirs or tuple(ask.page_bytes) != other.lengths():
                raise RemoteError(
                    ErrorCode.LAYOUT_MISMATCH,
                    f"same fingerprint, other pages: the engine has {list(ask.page_bytes)} bytes, layout"
                    f" {[_hex(layout) for layout in mine]}; engine {other.engine} has {list(other.lengths())} bytes, layout"
                    f" {[_hex(layout) for layout in theirs]}",
                )

    def _check_same(self, session: Session, ask: Attach) -> None:
        # First: an engine that came back with another configuration has to wait for the proof of its death, not to give up.
        for member in session.members.values():
            if (member.role, member.rank) == (ask.role, ask.rank):
                raise RemoteError(
                    ErrorCode.SESSION_TAKEN,
                    f"engine {ask.engine} has a living {ask.role} {ask.rank} already, process {member.pid}",
                )
        if ask.base != session.base:
            raise RemoteError(
                ErrorCode.FINGERPRINT_MISMATCH,
                f"processes of engine {ask.engine} disagree: this one's base fingerprint is {_hex(ask.base)}, the session's"
                f" {_hex(session.base)}",
            )
        if (ask.shards, ask.stripes) != (session.shards, session.stripes):
            raise RemoteError(
                ErrorCode.LAYOUT_MISMATCH,
                f"engine {ask.engine}: this process says {ask.shards} shards and {ask.stripes} stripes, the session has"
                f" {session.shards} and {session.stripes}",
            )
        pages = _pages(ask)
        if ask.role == "rank":
            if session.layouts:
                _check_rank(ask.engine, ask.shard, pages[0], (session.layouts[ask.shard], session.page_bytes[ask.shard]))
            return
        for member in session.members.values():
            if member.role == "rank":
                _check_rank(ask.engine, member.shard, member.page, pages[member.shard])

    def leave(self, session: Session, member: Member) -> bool:
        """Removes a member whose slots have been dealt with. True: that was the last one, the session is over."""
        session.members.pop(member.number, None)
        if session.members:
            return False
        self.by_number.pop(session.number, None)
        self._by_engine.pop(session.engine, None)
        return True

    def name(self, session: int) -> str:
        """The engine of a session, also of one that has ended; its number when nobody knows any more."""
        return self._names.get(session) or f"{session:016x}"

    def listed(self) -> SessionList:
        """Those whose scheduler half has said how it names pages."""
        told = [session for session in self.by_number.values() if session.fingerprint and _names_pages(session.factors)]
        return SessionList(
            [session.engine for session in told],
            b"".join(session.fingerprint for session in told),
            u32s(int(session.factors["block_size"]) for session in told),
            u32s(int(session.factors["hash_block_size"]) for session in told),
            [session.factors["hash_algorithm"] for session in told],
            [session.factors["none_hash"] for session in told],
        )

    def find(self, session: int, token: bytes) -> Session:
        """Raises `not_attached` or `bad_token`."""
        found = self.by_number.get(session)
        if found is None:
            raise RemoteError(ErrorCode.NOT_ATTACHED, f"no session {session:016x} in this life of the tier")
        if found.token != token:
            raise RemoteError(ErrorCode.BAD_TOKEN, f"wrong token for session {session:016x}")
        return found

    def believed(self, session: Session, now: float) -> bool:
        """Does a promise of this session count? Every member must have shown life within PROMISE_STALE_S."""
        return all(now - member.alive_at <= PROMISE_STALE_S for member in session.members.values())

    def validate(self) -> None:
        for number, session in self.by_number.items():
            assert session.number == number and self._by_engine[session.engine] is session and session.members
            roles = [(member.role, member.rank) for member in session.members.values()]
            assert len(roles) == len(set(roles))
