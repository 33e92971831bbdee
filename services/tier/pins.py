"""Pins, pure: another tier asks that pages stay where they are while it reads them (docs/protocol.md 3.4).

Pages of an earlier life are verified first, pages on disk are read first; the answer waits for that, but not for long. What comes
too late for it is there when the reader asks again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from pegaflow.common.slot_table import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.transfer import Pin, Pinned
from pegaflow.services.tier.commands import Command, ReadersUntil, Reply
from pegaflow.services.tier.disk.level import DiskLevel
from pegaflow.services.tier.leases import Leases
from pegaflow.services.tier.page import Page, PageState
from pegaflow.services.tier.pages import Pages
from pegaflow.services.tier.verifier import Verifier

MAX_PIN_TTL_S = 60.0
VERIFY_S = 0.5


@dataclass(frozen=True, slots=True)
class Agent:
    """The mover's NIXL agent as other tiers need to know it."""

    name: str
    metadata: bytes
    base: int


@dataclass(slots=True, eq=False)
class _Waiting:
    """`doubtful`: pages that are being verified; `below`: keys that were on disk; `unread`: of those, not asked for yet.

    Each is looked at from its end: what is known now is not looked at again.
    """

    asker: Any
    message: Pin
    agent: Agent
    until: float
    doubtful: list[Page]
    below: list[bytes]
    unread: deque[bytes]


class Pins:
    """Answers pins; `waiting` are those with pages that are being verified or read."""

    def __init__(
        self,
        pages: Pages,
        leases: Leases,
        verifier: Verifier,
        disk: DiskLevel,
        out: list[Command],
        counts: dict[str, int],
        pool_bytes: int,
        readers_until: float,
    ) -> None:
        """`readers_until`: so long may those read whom an earlier life has told to."""
        self._pages, self._leases, self._verifier, self._out, self._counts = pages, leases, verifier, out, counts
        self._disk, self._pool_bytes = disk, pool_bytes
        self.waiting: list[_Waiting] = []
        self._earlier = self._noted = readers_until

    def pin(self, asker: Any, message: Pin, agent: Agent | None, now: float) -> None:
        """Pins what is there of the asked pages, once it is known to be good. Raises `RemoteError` without an agent."""
        if agent is None:
            raise RemoteError(ErrorCode.NOT_READY, "the mover is not up")
        doubtful = [page for page in self._there(message) if not page.verified]
        self._verifier.first_use(doubtful)
        index, has = self._pages.index, self._disk.has
        below = [key for key in message.keys if key not in index and has(key)]
        one = _Waiting(asker, message, agent, now + VERIFY_S, doubtful, below, deque(below))
        if doubtful or self._reading(one, now):
            self.waiting.append(one)
        else:
            self._answer(one, now)

    def run(self, now: float) -> None:
        """Answers those whose pages are known to be good or bad and read by now, or that have waited long enough."""
        due = [one for one in self.waiting if now >= one.until or not self._not_yet(one, now)]
        if due:
            self.waiting = [one for one in self.waiting if one not in due]
            for one in due:
                self._answer(one, now)
        self._note()

    def _note(self) -> None:
        """Leaves to the next life how long it has to keep pages where they are."""
        at = max(self._earlier, self._leases.readers_until)
        if at != self._noted:
            self._noted = at
            self._out.append(ReadersUntil(at))

    def _not_yet(self, one: _Waiting, now: float) -> bool:
        # PERF: it is asked after each event, for as long as somebody waits.
        while one.doubtful and (one.doubtful[-1].verified or one.doubtful[-1].state is not PageState.SEALED):
            one.doubtful.pop()
        return bool(one.doubtful) or self._reading(one, now)

    def _reading(self, one: _Waiting, now: float) -> bool:
        """Some of its pages are on their way from disk; begins to read what was not yet, each page once."""
        index, disk = self._pages.index, self._disk
        while one.unread and (one.unread[0] in index or not disk.has(one.unread[0])):
            one.unread.popleft()
        if one.unread and not disk.full(one.unread[0]):
            missing = [key for key in one.unread if key not in index and disk.has(key)]
            rest = missing[len(disk.read(missing, now)) :]
            one.unread = deque(rest if rest and disk.full(rest[0]) else ())  # else there is no space in memory
        if one.unread:
            return True
        while one.below and not self._on_its_way(one.below[-1]):
            one.below.pop()
        return bool(one.below)

    def _on_its_way(self, key: bytes) -> bool:
        page = self._pages.index.get(key)
        return page is not None and page.state is PageState.FETCHING

    def _there(self, message: Pin) -> list[Page]:
        pages = map(self._pages.index.get, message.keys)
        return [page for page in pages if page is not None and page.state is PageState.SEALED]

    def _answer(self, one: _Waiting, now: float) -> None:
        message, agent = one.message, one.agent
        positions, rows, offsets, lengths, checksums = u32s(), u32s(), u64s(), u32s(), bytearray()
        pages: list[Page] = []
        for position, key in enumerate(message.keys):
            page = self._pages.index.get(key)
            if page is None or page.state is not PageState.SEALED or not page.verified or len(page.slots) != message.shards:
                continue
            pages.append(page)
            positions.append(position)
            rows.append(page.rows)
            offsets.extend(slot * GRANULE for slot in page.slots)
            lengths.extend(page.lengths)
            checksums += b"".join(page.checksums)
        lease = 0
        if pages:
            ttl_s = min(message.ttl_ms / 1e3, MAX_PIN_TTL_S)
            lease = self._leases.pin(message.reader, pages, ttl_s, now).number
            self._pages.space.touch(pages, chain=False)
            self._counts["pinned"] += len(pages)
            self._note()
        answer = Pinned(
            lease, positions, rows, offsets, lengths, bytes(checksums), agent.name, agent.metadata, agent.base, self._pool_bytes
        )
        self._out.append(Reply(one.asker, answer))
