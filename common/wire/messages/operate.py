"""Operating: ping and status (requests), drain, log level, dump, nodes and engines (control), and the one error reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pegaflow.common.wire.codec import Bool, Int, Str, message


@message
@dataclass(frozen=True, slots=True)
class Error:
    """The reply to a request that failed: a stable code, a text for people, whether asking again can help."""

    KIND: ClassVar[str] = "error"
    code: Str
    text: Str
    retryable: Bool


@message
@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there?"""

    KIND: ClassVar[str] = "ping"


@message
@dataclass(frozen=True, slots=True)
class Pong:
    """Who answers, in which life, for how long."""

    KIND: ClassVar[str] = "pong"
    service: Str
    node: Str
    epoch: Int
    package: Str
    uptime_ms: Int


@message
@dataclass(frozen=True, slots=True)
class Status:
    """How are you? Answered with a document."""

    KIND: ClassVar[str] = "status"


@message
@dataclass(frozen=True, slots=True)
class Dump:
    """Everything countable: slots by state, references, leases, holds, waiters, publishers. Equal counts: nothing leaked."""

    KIND: ClassVar[str] = "dump"


@message
@dataclass(frozen=True, slots=True)
class Document:
    """A JSON object as text; its fields are documented in docs/protocol.md."""

    KIND: ClassVar[str] = "document"
    service: Str
    node: Str
    epoch: Int
    json: Str


@message
@dataclass(frozen=True, slots=True)
class Drain:
    """Take no new work; finish what is open; end."""

    KIND: ClassVar[str] = "drain"


@message
@dataclass(frozen=True, slots=True)
class NodeDrain:
    """A tier takes no new saves and goes on serving, over restarts too, until `node_undrain`. Answered by done.

    `hand_over`: it leaves for good, so other tiers are asked to fetch what nobody else has.
    """

    KIND: ClassVar[str] = "node_drain"
    hand_over: Bool = False


@message
@dataclass(frozen=True, slots=True)
class NodeUndrain:
    """That tier takes saves again. Answered by done."""

    KIND: ClassVar[str] = "node_undrain"


@message
@dataclass(frozen=True, slots=True)
class LogLevel:
    """debug, info, warning or error."""

    KIND: ClassVar[str] = "log_level"
    level: Str


@message
@dataclass(frozen=True, slots=True)
class EngineAdd:
    """A router sends requests to this engine too; `role` is prefill, decode or engine, `url` its base URL. Answered by done."""

    KIND: ClassVar[str] = "engine_add"
    role: Str
    url: Str


@message
@dataclass(frozen=True, slots=True)
class EngineRemove:
    """A router sends nothing more to this engine; what is open there goes on. Answered by done."""

    KIND: ClassVar[str] = "engine_remove"
    role: Str
    url: Str
