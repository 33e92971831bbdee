"""The metaserver as a script: hellos, catalogues and locates in, replies and node events out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.common.wire.messages.catalogue import (
    MEMORY,
    NO_OWNER,
    Delta,
    Hello,
    Locate,
    Located,
    SyncChunk,
)
from pegaflow.services.metaserver.commands import AskChunk, Command, Fail, Publish, Reply
from pegaflow.services.metaserver.events import Asked, ChunkAnswer, Event, Heard
from pegaflow.services.metaserver.state import MetaserverState

A1, A2, B1 = 0xA1, 0xA2, 0xB1
K = [b"key-%d" % n for n in range(8)]


class Script:
    """Feeds the state, keeps what came out, and plays the tiers' part of a snapshot."""

    def __init__(self) -> None:
        self.state = MetaserverState(99, lambda: 0.2)
        self.now = 100.0
        self.seqs: dict[int, int] = {}

    def feed(self, event: Event, after: float = 0.0) -> list[Command]:
        self.now += after
        out = self.state.handle(event, self.now)
        self.state.validate()
        return out

    def hello(
        self,
        node: str,
        epoch: int,
        endpoint: str = "",
        after: float = 0.0,
        *,
        draining: bool = False,
        reads: int = 0,
        leased: int = 0,
    ) -> list[Command]:
        at = endpoint or f"tcp://{node}:1"
        return self.feed(Asked("h", Hello(node, epoch, at, at + "1", at + "2", "1.0", draining, reads, leased)), after)

    def up(self, node: str, epoch: int, held: dict[bytes, int] | None = None, level: int = MEMORY) -> list[Command]:
        """Hello, welcome and a snapshot of one chunk."""
        self.hello(node, epoch)
        [ask] = [c for c in self.feed(Heard(node, epoch, 0, Welcome())) if isinstance(c, AskChunk)]
        rows = held or {}
        keys, states = list(rows), bytes(rows.values())
        sync = ask.sync
        levels, sizes = bytes([level]) * len(keys), u32s([64] * len(keys))
        chunk = SyncChunk(sync.clone_epoch, sync.sync_id, 0, 1, 0, keys, states, levels, sizes)
        return self.feed(ChunkAnswer(node, sync.sync_id, chunk))

    def delta(self, node: str, epoch: int, **changes: int) -> list[Command]:
        keys = [K[int(name[1:])] for name in changes]
        self.seqs[epoch] = self.seqs.get(epoch, 0) + 1
        delta = Delta(keys, bytes(changes.values()), bytes(len(keys)), u32s([64] * len(keys)))
        return self.feed(Heard(node, epoch, self.seqs[epoch], delta))

    def locate(
        self,
        keys: Sequence[bytes],
        *,
        wait_ms: int = 1000,
        expected: bool = False,
        asker: str = "me",
        tails: int = 0,
        holes: bool = False,
    ) -> list[Command]:
        return self.feed(Asked("l", Locate(asker, keys, wait_ms, expected, tails, holes)))


def located(out: list[Command]) -> Located:
    [message] = [c.message for c in out if isinstance(c, Reply) and isinstance(c.message, Located)]
    assert message.check() is None
    return message


def owners(out: list[Command]) -> list[list[str]]:
    answer = located(out)
    rows = [answer.owners[i * answer.width : (i + 1) * answer.width] for i in range(len(answer.states))]
    return [[answer.nodes[owner] for owner in row if owner != NO_OWNER] for row in rows]


def published(out: list[Command]) -> list[Any]:
    return [c.message for c in out if isinstance(c, Publish)]


def failures(out: list[Command]) -> list[str]:
    return [c.code for c in out if isinstance(c, Fail)]
