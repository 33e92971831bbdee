"""What the pure metaserver asks its shell to do, in order."""

from __future__ import annotations

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


Command = Reply | Fail | Publish | Connect | Disconnect | AskChunk | Log
