"""One lookup that has no answer yet, pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages import catalogue, loads
from pegaflow.common.wire.messages.catalogue import Located
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.services.tier.fetches import Owner
from pegaflow.services.tier.last_lookups import Ended
from pegaflow.services.tier.mover.events import Outcome
from pegaflow.services.tier.page import Page
from pegaflow.services.tier.sessions import Session

REFUSED_S = 0.5
"""How long an owner that did not deliver a page is not asked for it again. Most that fail have stood still, and go on."""
LASTING = {ErrorCode.WRONG_EPOCH, ErrorCode.BAD_CHECKSUM, ErrorCode.BAD_MESSAGE, Outcome.BAD_DESCRIPTOR}
"""What no time heals in a life of the owner."""


@dataclass(slots=True, eq=False)
class OpenLookup:
    """`got`: pages of the prefix found so far, with their references. `owners`: who is said to hold a key. `refused`: until when
    an owner (node, epoch) is not asked for a key."""

    number: int
    asker: Any
    session: Session
    keys: Sequence[bytes]
    tails: Sequence[bytes]
    deadline: float
    expected: bool
    got: list[Page] = field(default_factory=list)
    tail: int = -1
    sources: bytearray = field(default_factory=bytearray)
    waits: set[bytes] = field(default_factory=set)
    fetching: set[bytes] = field(default_factory=set)
    reading: set[bytes] = field(default_factory=set)
    owners: dict[bytes, list[Owner]] = field(default_factory=dict)
    refused: dict[tuple[bytes, str, int], float] = field(default_factory=dict)
    exhausted: set[bytes] = field(default_factory=set)
    retry_at: float = 0.0
    asking: int = 0
    failure: str = ""
    checked: int = 0
    checking: bool = False
    request: str = ""
    began: float = 0.0

    def runs(self, most: int, here: Callable[[bytes], bool]) -> tuple[list[tuple[Owner, list[bytes]]], bool]:
        """What to fetch next and of whom, at most so many keys that are not `here`, up to the first that nobody is known to hold.

        And whether there is more of it.
        """
        runs: list[tuple[Owner, list[bytes]]] = []
        full = self.keys[len(self.got) :]
        for i, key in enumerate([*full, *self.tails]):
            if here(key):
                continue
            owners = self.owners.get(key)
            if not owners:
                if i < len(full):
                    break
                continue  # the other tail may be there
            if not most:
                return runs, True
            most -= 1
            if not runs or runs[-1][0] != owners[0]:
                runs.append((owners[0], []))
            runs[-1][1].append(key)
        return runs, False

    def refuse(self, key: bytes, owner: Owner, code: str, now: float) -> None:
        """This owner did not deliver this page: it is not asked for it again, for a while or at all."""
        self.refused[key, owner.node, owner.epoch] = math.inf if code in LASTING else now + REFUSED_S

    def refuses(self, key: bytes, owner: Owner, now: float) -> bool:
        """Whether it is still too early to ask this owner for this page again."""
        return now < self.refused.get((key, owner.node, owner.epoch), now)

    def source(self, key: bytes) -> int:
        """Where the page of this key came from."""
        return loads.REMOTE if key in self.fetching else loads.DISK if key in self.reading else loads.LOCAL

    def ended(self, full: int, reason: str, now: float) -> Ended:
        """How it stands, or ended, with `full` keys of its prefix found."""
        hit = self.tail >= 0
        missing = self.keys[full] if full < len(self.keys) else self.tails[0] if self.tails and not hit else b""
        fetched, read = self.sources.count(loads.REMOTE), self.sources.count(loads.DISK)
        session, tails = self.session, len(self.tails)
        return Ended(
            now, now - self.began, session.number, session.fingerprint, self.request, len(self.keys), full, tails, hit, fetched,
            read, reason, missing,
        )  # fmt: skip

    def hits(self, lease: int, full: int, reason: str) -> Hits:
        """The answer: `full` keys of the prefix and the tail, if there is one, under this lease."""
        shards = len(self.got[0].slots)
        if shards == 1:
            slots = array("I", [page.first_slot for page in self.got])
            generations = array("Q", [page.first_generation for page in self.got])
        else:
            slots = array("I", [slot for page in self.got for slot in page.slots])
            generations = array("Q", [generation for page in self.got for generation in page.generations])
        return Hits(self.number, lease, full, self.tail, shards, slots, generations, bytes(self.sources), reason)

    def nothing(self, reason: str) -> Hits:
        """The answer without a hit: no lease, no columns."""
        return Hits(self.number, 0, 0, -1, max(1, self.session.shards), array("I"), array("Q"), b"", reason)


def fits(answer: Located, keys: Sequence[bytes]) -> bool:
    """An answer may be shorter than the question only by what follows a hole."""
    count = len(answer.states)
    return count == len(keys) or (0 < count < len(keys) and answer.states[-1] == catalogue.GONE)
