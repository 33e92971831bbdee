"""What the shell tells the pure metaserver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import SyncChunk


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. `asker` goes into the `Reply`."""

    asker: Any
    message: Any


@dataclass(frozen=True, slots=True)
class Heard:
    """An event of a connected node's catalogue topic. `message` None: a kind that this version does not know."""

    node: str
    epoch: int
    seq: int
    message: Any


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """`Connect` could not be carried out: nobody listens to this node now."""

    node: str


@dataclass(frozen=True, slots=True)
class ChunkAnswer:
    node: str
    sync_id: int
    answer: SyncChunk | PegaflowError


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Work:
    """Nothing else is urgent: one step of what can wait."""


class Record(NamedTuple):
    """What a shared store shows of a node: `generation` holds a whole copy of the catalogue of the life `epoch`; `keys` in it."""

    epoch: int
    generation: str
    keys: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """Whether this metaserver writes this node's catalogue until further notice, and what the store shows of it. `renewed`: it
    did before, without a break."""

    node: str
    epoch: int
    mine: bool
    renewed: bool
    record: Record | None


@dataclass(frozen=True, slots=True)
class Looked:
    """Per generation asked for, an entry or None per key; or why there is no answer."""

    ticket: int
    columns: Sequence[Sequence[bytes | None]] | PegaflowError


@dataclass(frozen=True, slots=True)
class Changed:
    """Some metaserver has written these keys; None: any may have been written."""

    keys: Sequence[bytes] | None


@dataclass(frozen=True, slots=True)
class StoreBack:
    """The store was away: anything may have been missed, and what was written in the meantime may be lost."""


StoreEvent = Claimed | Looked | Changed | StoreBack
Event = Asked | Heard | ConnectFailed | ChunkAnswer | Tick | Work | StoreEvent
