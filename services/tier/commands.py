"""What the pure tier asks its shell to do, in order: a `Table` stands before the message it justifies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pegaflow.common.pool import SlotEntry
from pegaflow.common.wire.codec import Message
from pegaflow.services.tier.disk.record import Record


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the request that the shell knows as `asker`."""

    asker: Any
    message: Message


@dataclass(frozen=True, slots=True)
class Fail:
    asker: Any
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Publish:
    topic: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class OpenTopic:
    topic: bytes


@dataclass(frozen=True, slots=True)
class CloseTopic:
    topic: bytes


class Table(NamedTuple):
    """Store an entry of the slot table; `generation` > 0: raise the generation first. `evicted`: the slot held a sealed page."""

    slot: int
    generation: int
    entry: SlotEntry
    evicted: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """Store in the slab directory that the slab at granule `first` has slots of `size` granules; 0: it is not cut."""

    first: int
    size: int


@dataclass(frozen=True, slots=True)
class ReadersUntil:
    """Store in the header of the slot table that other tiers may read until `at`: before the answer that lets them."""

    at: float


@dataclass(frozen=True, slots=True)
class Hash:
    """Checksum these pages (slot, length in bytes), off the loop; answered by `Hashed`."""

    job: int
    slots: Sequence[int]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class Locate:
    """Ask the metaserver; answered by `LocateAnswer` with the same `ask`. The last `tails` keys are alternatives."""

    ask: int
    keys: Sequence[bytes]
    wait_ms: int
    expected: bool
    tails: int = 0
    holes: bool = False


@dataclass(frozen=True, slots=True)
class AskNodes:
    """Ask the metaserver who is there; answered by `NodesAnswer`."""

    job: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Ask a tier to fetch these pages, which are here; answered by `TakeAnswer`. `lengths`: of each page, one per shard."""

    job: int
    endpoint: str
    epoch: int
    keys: Sequence[bytes]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class Resume:
    """Tell `Resumed` once other events had their turn: there is more to do that need not be done at once."""


@dataclass(frozen=True, slots=True)
class PinAt:
    """Ask a tier to keep pages still; answered by `PinAnswer` with the same `fetch`."""

    fetch: int
    endpoint: str
    epoch: int
    keys: Sequence[bytes]
    shards: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class UnpinAt:
    endpoint: str
    epoch: int
    lease: int


@dataclass(frozen=True, slots=True)
class Read:
    """Post a NIXL READ; answered by `ReadEnded`. Offsets and lengths in bytes."""

    fetch: int
    peer: str
    metadata: bytes
    base: int
    pool_bytes: int
    local: array[int]
    remote: array[int]
    lengths: array[int]


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """That life of a tier is over: the mover need not keep its connection."""

    peer: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The READ's deadline has passed; its slots stay in quarantine until `ReadEnded` comes."""

    fetch: int


@dataclass(frozen=True, slots=True)
class DiskWrite:
    """Write these pages to their segment (made with `segment_bytes` if it is new), then their records; answered by `DiskWritten`.

    `slots`: per page those of its parts.
    """

    job: int
    records: Sequence[Record]
    slots: Sequence[Sequence[int]]
    segment_bytes: int


@dataclass(frozen=True, slots=True)
class DiskRead:
    """Read these pages of one segment into these slots and take their checksums; answered by `DiskReadEnded`."""

    job: int
    records: Sequence[Record]
    slots: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class DiskGiveUp:
    """The read's deadline has passed: if it has not begun, it need not."""

    job: int


@dataclass(frozen=True, slots=True)
class DiskDrop:
    """Remove a segment; no job is at work in it."""

    segment: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Close the lock probe of a member that is gone; `unlink` its file if it is proven dead."""

    session: int
    member: int
    unlink: bool


@dataclass(frozen=True, slots=True)
class Log:
    """A line for people."""

    event: str
    fields: dict[str, Any]


Command = (
    Reply
    | Fail
    | Publish
    | OpenTopic
    | CloseTopic
    | Table
    | Cut
    | ReadersUntil
    | Hash
    | Locate
    | AskNodes
    | Offer
    | Resume
    | PinAt
    | UnpinAt
    | Read
    | GiveUp
    | ForgetPeer
    | Forget
    | DiskWrite
    | DiskRead
    | DiskGiveUp
    | DiskDrop
    | Log
)
