"""What the shell tells the pure metaserver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


Event = Asked | Heard | ChunkAnswer | Tick | Work
