"""What the shell tells the pure tier. Messages that came in are wrapped with who sent them; the rest are results of commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pegaflow.common.slot_table import Row
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import Located, NodeList
from pegaflow.common.wire.messages.transfer import Pinned, Taken
from pegaflow.services.tier.disk.record import Record


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `asker` goes into the `Reply`; the lock behind an attach has been seen held."""

    asker: Any
    message: Any


@dataclass(frozen=True, slots=True)
class Published:
    """A publication of an engine's process."""

    session: int
    member: int
    seq: int
    token: bytes
    message: Any


@dataclass(frozen=True, slots=True)
class Proven:
    """This member's lock is free: the process is dead."""

    session: int
    member: int


@dataclass(frozen=True, slots=True)
class Backed:
    """The first `granules` of the pool have memory."""

    granules: int


@dataclass(frozen=True, slots=True)
class SlabFound:
    """A slab of an earlier life: its slots that are not free, cut for `size` granules (0: doubtful)."""

    first: int
    size: int
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class SlabsEnded:
    """That was the last slab of an earlier life."""


@dataclass(frozen=True, slots=True)
class LockFree:
    """The lock of this member of an earlier life, which has not attached again, is free: the process is dead."""

    holder: int


@dataclass(frozen=True, slots=True)
class Hashed:
    """Checksums of a `Hash` command's pages, 16 bytes each; None: they could not be taken."""

    job: int
    checksums: Sequence[bytes] | None


@dataclass(frozen=True, slots=True)
class LocateAnswer:
    ask: int
    answer: Located | PegaflowError


@dataclass(frozen=True, slots=True)
class NodesAnswer:
    job: int
    answer: NodeList | PegaflowError


@dataclass(frozen=True, slots=True)
class TakeAnswer:
    job: int
    answer: Taken | PegaflowError


@dataclass(frozen=True, slots=True)
class Resumed:
    """Answer to `Resume`."""


@dataclass(frozen=True, slots=True)
class PinAnswer:
    """`sent_at` is the reader's clock from before it sent the pin."""

    fetch: int
    answer: Pinned | PegaflowError
    sent_at: float


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """`outcome` done, landed_late, or another code of the mover. Nothing can land in the destination any more."""

    fetch: int
    outcome: str


@dataclass(frozen=True, slots=True)
class DiskWritten:
    """A `DiskWrite` has ended; `code` empty: pages and records are on disk, else none of them counts."""

    job: int
    code: str


@dataclass(frozen=True, slots=True)
class DiskReadEnded:
    """Per page of a `DiskRead` the checksums of its parts as they are in the slots now, or a code; None: nothing was read.

    Nothing can land in the slots any more.
    """

    job: int
    found: Sequence[Sequence[bytes] | str] | None


@dataclass(frozen=True, slots=True)
class SegmentFound:
    """A segment of an earlier life on disk: its bytes, and pages whose records were whole.

    Not `begins`: more of the segment that was told of last.
    """

    number: int
    size: int
    records: Sequence[Record]
    begins: bool = True


@dataclass(frozen=True, slots=True)
class PagesUndeciphered:
    """So many pages of an earlier life were written to disk under another key, and are gone."""

    count: int


@dataclass(frozen=True, slots=True)
class SegmentsEnded:
    """That was the last segment of an earlier life."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    Asked
    | Published
    | Proven
    | Backed
    | SlabFound
    | SlabsEnded
    | LockFree
    | Hashed
    | LocateAnswer
    | NodesAnswer
    | TakeAnswer
    | Resumed
    | PinAnswer
    | ReadEnded
    | DiskWritten
    | DiskReadEnded
    | SegmentFound
    | PagesUndeciphered
    | SegmentsEnded
    | Tick
)
