"""The catalogue: deltas and beats (tier → everyone), sync (clone ↔ tier), locate and nodes (anyone ↔ metaserver)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pegaflow.common.wire.codec import U32, U64, Bool, Bytes, Int, Keys, Str, Strs, UncutKeys, message

GONE, PENDING, SEALED = range(3)
MEMORY, DISK = range(2)
NO_OWNER = 0xFFFFFFFF


@message
@dataclass(frozen=True, slots=True)
class Delta:
    """What these keys are from now on: state (gone, pending, sealed), level (0 memory, 1 disk), size in bytes over all shards."""

    KIND: ClassVar[str] = "delta"
    keys: Keys
    states: Bytes
    levels: Bytes
    sizes: U32

    def check(self) -> str | None:
        count = len(self.keys)
        return None if len(self.states) == len(self.levels) == len(self.sizes) == count else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class CatalogueBeat:
    """Each heartbeat; the header's seq is the head. `digest`: sum mod 2^128 over the index at that head."""

    KIND: ClassVar[str] = "catalogue_beat"
    digest: Bytes
    pending: Int
    sealed: Int


@message
@dataclass(frozen=True, slots=True)
class Sync:
    """A clone asks for chunk `chunk` of the snapshot `sync_id`; chunk 0 begins the walk."""

    KIND: ClassVar[str] = "sync"
    clone_epoch: Int
    sync_id: Int
    chunk: Int


@message
@dataclass(frozen=True, slots=True)
class SyncChunk:
    """Chunk `chunk` of `chunks`; `head` is the delta head when the walk began: deltas above it come after the last chunk."""

    KIND: ClassVar[str] = "sync_chunk"
    clone_epoch: Int
    sync_id: Int
    chunk: Int
    chunks: Int
    head: Int
    keys: Keys
    states: Bytes
    levels: Bytes
    sizes: U32

    def check(self) -> str | None:
        count = len(self.keys)
        return None if len(self.states) == len(self.levels) == len(self.sizes) == count else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class Hello:
    """A tier tells a metaserver that it lives; each heartbeat. `reads`: pins of other tiers; `leased`: 1/1000 of its pool."""

    KIND: ClassVar[str] = "hello"
    node: Str
    epoch: Int
    requests: Str
    events: Str
    control: Str
    package: Str
    draining: Bool = False
    reads: Int = 0
    leased: Int = 0


@message
@dataclass(frozen=True, slots=True)
class HelloAck:
    """`known`: the clone of this tier is whole."""

    KIND: ClassVar[str] = "hello_ack"
    known: Bool


@message
@dataclass(frozen=True, slots=True)
class Bye:
    """A tier leaves on purpose: its entries go at once."""

    KIND: ClassVar[str] = "bye"
    node: Str
    epoch: Int


@message
@dataclass(frozen=True, slots=True)
class Locate:
    """Where are these keys? Answered as soon as one of them is sealed on a node other than `asker`, or none is worth waiting for.

    Worth waiting for: a pending key always, an unknown one only when `expected`; never longer than `wait_ms`. Only keys up to the
    first hole count: the first of the full keys that is neither sealed nor pending elsewhere. The last `tails` keys are
    alternatives and make no hole; `holes`: all keys count. `width`: owners per key that are wanted; 0: two.
    """

    KIND: ClassVar[str] = "locate"
    asker: Str
    keys: UncutKeys
    wait_ms: Int
    expected: Bool
    tails: Int = 0
    holes: Bool = False
    width: Int = 0


@message
@dataclass(frozen=True, slots=True)
class Located:
    """Per key, up to the first hole, its best state, and up to `width` owners as indices into `nodes` (NO_OWNER: none)."""

    KIND: ClassVar[str] = "located"
    states: Bytes
    width: Int
    owners: U32
    nodes: Strs
    epochs: U64
    requests: Strs

    def check(self) -> str | None:
        if len(self.owners) != len(self.states) * self.width:
            return "columns of different lengths"
        if not len(self.nodes) == len(self.epochs) == len(self.requests):
            return "node columns of different lengths"
        if any(owner >= len(self.nodes) and owner != NO_OWNER for owner in _distinct(self.owners, self.width)):
            return "owner outside the node list"
        return None


def _distinct(owners: U32, width: int) -> Iterable[int]:
    """All numbers that occur. PERF: mostly one node has all keys, and to compare is cheaper than to collect."""
    first = owners[:width]
    return first if owners == first * (len(owners) // width if width else 0) else set(owners)


@message
@dataclass(frozen=True, slots=True)
class Nodes:
    """Which nodes are known?"""

    KIND: ClassVar[str] = "nodes"


@message
@dataclass(frozen=True, slots=True)
class NodeList:
    """Columns per node; `states` are texts: syncing, up, suspect."""

    KIND: ClassVar[str] = "node_list"
    nodes: Strs
    epochs: U64
    states: Strs
    requests: Strs
    events: Strs
    control: Strs
    sealed: U64
    pending: U64

    def check(self) -> str | None:
        columns = (self.epochs, self.states, self.requests, self.events, self.control, self.sealed, self.pending)
        return None if all(len(column) == len(self.nodes) for column in columns) else "columns of different lengths"


@message
@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node's clone is whole (metaserver → subscribers)."""

    KIND: ClassVar[str] = "node_up"
    node: Str
    epoch: Int
    requests: Str


@message
@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node is gone: `reason` is dead, bye or replaced."""

    KIND: ClassVar[str] = "node_down"
    node: Str
    epoch: Int
    reason: Str


@message
@dataclass(frozen=True, slots=True)
class Beat:
    """A publisher without a catalogue shows its head."""

    KIND: ClassVar[str] = "beat"
