"""What the pure metaserver asks its shell to do, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.messages.catalogue import Sync


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
    """On the topic of nodes."""

    message: Message


@dataclass(frozen=True, slots=True)
class Connect:
    """Listen to this tier's catalogue and be ready to ask it; replaces an earlier connection to the same node."""

    node: str
    requests: str
    events: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    node: str


@dataclass(frozen=True, slots=True)
class AskChunk:
    """Ask the node's life `epoch`; answered by `ChunkAnswer` with the same sync id."""

    node: str
    epoch: int
    sync: Sync


@dataclass(frozen=True, slots=True)
class Log:
    """A line for people."""

    event: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """Write this node's catalogue, unless another metaserver does; keep its generations alive. Answered by `Claimed`."""

    node: str
    epoch: int
    generations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Put:
    """In this order with other `Put`, `Show` and `Drop`. `tell`: readers see it, so those who wait must hear of it."""

    generation: str
    keys: Sequence[bytes]
    entries: Sequence[int]
    tell: bool


@dataclass(frozen=True, slots=True)
class Show:
    """Readers see this generation of the node from now on, if this metaserver still writes it."""

    node: str
    epoch: int
    generation: str


@dataclass(frozen=True, slots=True)
class Drop:
    generation: str


@dataclass(frozen=True, slots=True)
class Resign:
    """This metaserver does not write this node any more. `epoch`: of a life that is over, its record goes too; 0: it stays."""

    node: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Look:
    """Entries of these keys in each of these generations; answered by `Looked`."""

    ticket: int
    generations: tuple[str, ...]
    keys: Sequence[bytes]


StoreCommand = Claim | Put | Show | Drop | Resign | Look
Command = Reply | Fail | Publish | Connect | Disconnect | AskChunk | Log | StoreCommand
