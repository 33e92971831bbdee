"""A metaserver that knows a million pages of one node, and a few of another: questions, waits, copies and ends."""

from __future__ import annotations

from typing import Any

from pegaflow.common.lifecycle import collect_little_and_often
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.common.wire.messages.catalogue import (
    PENDING,
    SEALED,
    Bye,
    CatalogueBeat,
    Delta,
    Hello,
    Locate,
    Nodes,
    SyncChunk,
)
from pegaflow.common.wire.messages.inspection import Believe, Digest, Resync
from pegaflow.services.metaserver import events
from pegaflow.services.metaserver.commands import AskChunk, Command
from pegaflow.services.metaserver.state import MetaserverState

from stalled.recorder import Collector, Recorder
from stalled.tier import keys_of

CHUNK = 4096
WAITERS, WAITED = 4096, 256


class Metaserver:
    def __init__(self, recorder: Recorder, keys: dict[str, list[bytes]]) -> None:
        self.state, self.recorder, self.keys = MetaserverState(9, lambda: 0.0), recorder, keys
        self.now = 100.0

    def feed(self, event: events.Event) -> list[Command]:
        name = type(event.message).__name__ if isinstance(event, events.Asked | events.Heard) else type(event).__name__
        out: list[Command] = self.recorder.call(name, lambda: self.state.handle(event, self.now))
        for command in [command for command in out if isinstance(command, AskChunk)]:
            out += self.feed(events.ChunkAnswer(command.node, command.sync.sync_id, self._chunk(command)))
        return out

    def _chunk(self, ask: AskChunk) -> SyncChunk:
        mine, at = self.keys[ask.node], ask.sync.chunk
        keys = mine[at * CHUNK : (at + 1) * CHUNK]
        count, chunks = len(keys), max(1, -(-len(mine) // CHUNK))
        columns = (keys, bytes([SEALED]) * count, bytes(count), u32s([1 << 20] * count))
        return SyncChunk(ask.sync.clone_epoch, ask.sync.sync_id, at, chunks, 0, *columns)

    def meet(self, node: str) -> None:
        places = (f"tcp://{node}", f"tcp://{node}/e", f"tcp://{node}/c")
        self.ask(Hello(node, 5, *places, "bench", False, 0, 0))
        self.feed(events.Heard(node, 5, 0, Welcome()))

    def ask(self, message: Any) -> list[Command]:
        return self.feed(events.Asked("asker", message))

    def work(self) -> None:
        """What can wait, to its end."""
        while self.state.busy:
            self.feed(events.Work())

    def delta(self, node: str, seq: int, keys: list[bytes], state: int) -> None:
        count = len(keys)
        message = Delta(keys, bytes([state]) * count, bytes(count), u32s([1 << 20] * count))
        self.feed(events.Heard(node, 5, seq, message))


def run(pages: int) -> list[dict[str, Any]]:
    collect_little_and_often()
    recorder = Recorder()
    keys, promised = keys_of(pages), keys_of(WAITED, 2)
    one = Metaserver(recorder, {"a": keys, "b": keys_of(CHUNK, 3)})
    one.meet("b")
    collector = Collector()
    recorder.case("a snapshot is taken in", lambda: (one.meet("a"), one.work()))
    recorder.rows += collector.rows("meanwhile")
    few = min(65_536, pages // 8)
    recorder.case("nodes", lambda: one.ask(Nodes()), 3)
    recorder.case("digests", lambda: one.ask(Digest()), 3)
    recorder.case("status", lambda: recorder.call("dump", lambda: one.state.dump(one.now)), 3)
    recorder.case("a beat of the node", lambda: one.feed(events.Heard("a", 5, 0, CatalogueBeat(bytes(16), 0, 0))), 1)
    one.work()
    recorder.case(f"locate {few} keys, all there", lambda: one.ask(Locate("b", keys[:few], 0, False, 0, False)), 3)
    recorder.case(f"locate {few} keys of nobody", lambda: one.ask(Locate("b", keys_of(few, 4), 0, False, 0, True)), 3)
    recorder.case(f"locate {pages} keys", lambda: one.ask(Locate("b", keys[: 1 << 20], 0, False, 0, False)), 3)
    recorder.case(f"what is believed of {few} keys", lambda: one.ask(Believe("a", keys[:few])), 3)
    recorder.case("a delta of 4096 keys", lambda: one.delta("b", 1, keys_of(CHUNK, 5), SEALED))

    one.delta("b", 2, promised, PENDING)
    for _ in range(WAITERS):
        one.ask(Locate("c", promised, 60_000, True, 0, False))
    what = f"while {WAITERS} locates of {WAITED} keys wait: "
    recorder.case(what + "another snapshot", lambda: (one.ask(Resync("a")), one.work()))
    recorder.case(what + "a key of theirs is sealed", lambda: (one.delta("b", 3, promised[:1], SEALED), one.work()))
    for _ in range(WAITERS - len(one.state.waiters)):
        one.ask(Locate("c", promised[1:], 60_000, True, 0, False))
    recorder.case(what + "the node says goodbye", lambda: (one.ask(Bye("a", 5)), one.work()))
    return recorder.rows
