"""What crosses the border between the connector and its bus.

The connector's halves see one bus object each (`SchedulerBus`, `RankBus`); the trackers see only the references.
A reference carries the session it belongs to, so one of an earlier session is recognised and never acted upon.

    scheduler half ── publish_intent, lookup, release ──▶ SchedulerBus ──▶ tier
    rank           ── take_grant, written, abandoned  ──▶ RankBus      ──▶ tier
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol


class TierOptions(NamedTuple):
    """Where the tier is and how long to wait for it. Times in seconds. `curve_key_file` None: no CURVE, as over ipc."""

    endpoint: str
    runtime_dir: Path
    mode: str
    request_timeout_s: float
    wait_s: float
    curve_key_file: Path | None = None


class Member(NamedTuple):
    """One process of an engine.

    `shard` of `shards`: which slot of a key this rank writes and loads (TP: the TP rank; PP: stage × TP + rank;
    MLA: the stage). `stripe` of `stripes`: with MLA every rank has the same bytes, and this one writes the keys
    whose block index modulo `stripes` is `stripe`; 0 of 1 elsewhere.
    """

    engine: str
    role: str
    rank: int
    shard: int
    shards: int
    stripe: int
    stripes: int


class SessionId(NamedTuple):
    """One engine attached to one life of one tier."""

    epoch: int
    session: int


class IntentRef(NamedTuple):
    """One published intent. `digest` is that of its key list: a grant must name the same."""

    session: SessionId
    intent: int
    digest: bytes = b""


class LeaseRef(NamedTuple):
    session: SessionId
    lease: int


class LookupAnswer(NamedTuple):
    """The tier's answer to one lookup.

    `full`: how many of the asked keys, as a prefix, can be loaded. `tail`: index of the tail that can be loaded,
    -1 for none. `slots` and `generations`: `(full + (tail >= 0)) * shards` each, key by key. `sources`: per key 0
    (was here), 1 (fetched from another node) or 2 (read from disk). `code`: empty, or a stable error code; an error is no miss.
    Whoever takes the answer owns the lease and releases it exactly once.
    """

    lookup: int
    lease: LeaseRef | None
    full: int
    tail: int
    slots: array[int]
    generations: array[int]
    sources: bytes
    code: str


class Grant(NamedTuple):
    """Slots that this rank, and nobody else, may write, until it says `written` or `abandoned` for each.

    `positions`: indices into the intent's key list; `slots` and `generations` run beside it, `marks` with 8 bytes each,
    which the last word repeats.
    """

    ref: IntentRef
    grant: int
    positions: array[int]
    slots: array[int]
    generations: array[int]
    marks: bytes = b""


class AttachState(StrEnum):
    ATTACHED = "attached"
    ABSENT = "absent"


class AttachRefused(Exception):
    """The tier refused for a reason that trying again does not cure, such as another page layout."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Pool(Protocol):
    """The mapped pool, as far as copying needs it (`common.pool.PoolView`)."""

    @property
    def memory(self) -> memoryview: ...

    def generation(self, slot: int) -> int: ...


class SchedulerBus(Protocol):
    """The scheduler half's way to the tier. No method blocks, none raises, except `wait_attached`."""

    def wait_attached(self, timeout_s: float) -> AttachState:
        """Raises AttachRefused."""
        ...

    def session(self) -> SessionId | None: ...

    def publish_intent(
        self,
        keys: Sequence[bytes],
        rows: Sequence[int],
        stripes: Sequence[int],
        requests: Sequence[str],
        tails: int,
    ) -> IntentRef | None:
        """One intent for one step. `rows`: valid rows per key. None: not published, nothing may be saved."""
        ...

    def lookup(
        self,
        lookup: int,
        request_id: str,
        keys: Sequence[bytes],
        tails: Sequence[bytes],
        wait_s: float,
        expected: bool,
    ) -> bool:
        """False: there is no tier, so no answer will come."""
        ...

    def cancel(self, lookup: int) -> None:
        """The answer is not wanted any more; a lease in it is released by the bus."""
        ...

    def loading(self, lease: LeaseRef) -> None: ...

    def release(self, lease: LeaseRef) -> None: ...

    def drain(self) -> list[LookupAnswer]: ...

    def close(self) -> None: ...


class RankBus(Protocol):
    """One rank's way to the tier, and the only way to the pool's memory."""

    def wait_attached(self, timeout_s: float) -> AttachState:
        """Raises AttachRefused."""
        ...

    def session(self) -> SessionId | None: ...

    def pool(self) -> Pool | None: ...

    def take_grant(self, ref: IntentRef, deadline: float) -> Grant | None:
        """Waits for the grant. None: not here in time; a late one is answered `abandoned` by the bus."""
        ...

    def written(self, grant: Grant, positions: Sequence[int]) -> None: ...

    def abandoned(self, grant: Grant, positions: Sequence[int]) -> None: ...

    def begin_copy(self, session: SessionId) -> Pool | None:
        """Opens the bracket around any access to the pool. None: that session is over, nothing is open."""
        ...

    def end_copy(self) -> None: ...

    def close(self) -> None: ...
