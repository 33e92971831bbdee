"""The metaserver under any order of hellos, changes, losses and deaths: no waiter is forgotten, none is answered wrongly."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mapped_generation import MappedGeneration, live_entries
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.bus.sync_gate import SyncGate
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.common.wire.messages.catalogue import (
    GONE,
    NO_OWNER,
    PENDING,
    SEALED,
    Bye,
    CatalogueBeat,
    Delta,
    Hello,
    Locate,
    Located,
    Sync,
    SyncChunk,
)
from pegaflow.services.metaserver import state
from pegaflow.services.metaserver.commands import AskChunk, Connect, Disconnect, Reply
from pegaflow.services.metaserver.events import Asked, ChunkAnswer, Event, Heard, Tick, Work
from pegaflow.services.metaserver.index import Index, IndexGeneration
from pegaflow.services.metaserver.state import MetaserverState

NODES = st.sampled_from(["a", "b", "c"])
KEYS = [b"%d" % n for n in range(5)]
RARELY = st.sampled_from([False, False, False, True])
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([GONE, PENDING, SEALED, SEALED]), min_size=1, max_size=3)


class Tier:
    def __init__(self, epoch: int) -> None:
        self.epoch, self.seq = epoch, 0
        self.entries: dict[bytes, int] = {}
        self.walks: dict[int, tuple[int, list[tuple[bytes, int]]]] = {}

    def answer(self, sync: Sync) -> SyncChunk | None:
        """Snapshots come in two chunks, so that one may be half here."""
        if sync.chunk == 0:
            self.walks[sync.sync_id] = (self.seq, list(self.entries.items()))
        if sync.sync_id not in self.walks:
            return None
        head, rows = self.walks[sync.sync_id]
        mine = dict(rows[sync.chunk :: 2])
        columns = (list(mine), bytes(mine.values()), bytes(len(mine)), u32s([8] * len(mine)))
        return SyncChunk(sync.clone_epoch, sync.sync_id, sync.chunk, 2, head, *columns)


class Mirrored(MappedGeneration):
    """Writes to the index, and to a dictionary that says what the index must show."""

    def __init__(self, real: IndexGeneration) -> None:
        super().__init__()
        self.real = real

    def put(self, keys: Collection[bytes], entries: Collection[int]) -> None:
        super().put(keys, entries)
        self.real.put(keys, entries)

    def live(self) -> None:
        super().live()
        self.real.live()

    def void(self) -> None:
        super().void()
        self.real.void()

    def agrees(self, beat: CatalogueBeat) -> bool:
        assert self.real.agrees(beat) == super().agrees(beat)
        return self.real.agrees(beat)

    def validate(self) -> None:
        super().validate()
        assert self.real.counts == self.counts
        for key in KEYS:
            assert self.real.entries_of([key]) == [self.entries.get(key, 0)]


class Cluster(RuleBasedStateMachine):
    """Three tiers whose events may be lost, and askers that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.state = MetaserverState(1, lambda: 0.1)
        self.state.index = Index(2, 4)  # so small that it grows and that a sweep takes many steps
        self.state.nodes._generations = self.mirrored
        self.state.nodes.gate = SyncGate(1)
        self.now = 0.0
        self.tiers = {name: Tier(10 + i) for i, name in enumerate("abc")}
        self.lives = 20
        self.connected: set[str] = set()
        self.asks: list[AskChunk] = []
        self.open: dict[int, tuple[Locate, float]] = {}
        self.locates = 0

    def mirrored(self, node: str) -> Mirrored:
        return Mirrored(self.state.index.generation(node))

    def feed(self, event: Event) -> None:
        for command in self.state.handle(event, self.now):
            if isinstance(command, Connect):
                self.connected.add(command.node)
                tier = self.tiers[command.node]
                self.asks = [ask for ask in self.asks if ask.node != command.node]
                self.feed(Heard(command.node, tier.epoch, tier.seq, Welcome()))
            elif isinstance(command, Disconnect):
                self.connected.discard(command.node)
            elif isinstance(command, AskChunk):
                self.asks.append(command)
            elif isinstance(command, Reply) and isinstance(command.message, Located):
                self.answered(command.asker, command.message)

    def answered(self, number: int, answer: Located) -> None:
        asked, deadline = self.open.pop(number)  # KeyError: answered twice
        assert answer.check() is None and len(answer.states) <= len(asked.keys)
        full = len(asked.keys) if asked.holes else max(0, len(asked.keys) - asked.tails)
        hole = answer.states.find(GONE, 0, full)
        assert len(answer.states) == (hole + 1 if hole >= 0 and not asked.holes else len(asked.keys))
        assert asked.asker not in answer.nodes
        for i, key in enumerate(asked.keys[: len(answer.states)]):
            mine = [answer.nodes[o] for o in answer.owners[i * answer.width : (i + 1) * answer.width] if o != NO_OWNER]
            assert len(set(mine)) == len(mine)
            held = {
                name: entry_state(entries[key])
                for name, node in self.state.nodes.by_name.items()
                if key in (entries := live_entries(node.clone)) and name != asked.asker
            }
            sealed = [name for name, state in held.items() if state == SEALED]
            assert set(mine) <= set(sealed) and len(mine) == min(2, len(sealed))
            assert answer.states[i] == max(held.values(), default=GONE)
        worth = PENDING in answer.states or (asked.expected and len(asked.keys) > 0)
        assert SEALED in answer.states or not worth or self.now >= deadline, "answered before there was a reason"

    @rule(name=NODES)
    def hello(self, name: str) -> None:
        at = f"tcp://{name}:1"
        self.feed(Asked(None, Hello(name, self.tiers[name].epoch, at, at, at, "1")))

    @rule(name=NODES)
    def bye(self, name: str) -> None:
        self.feed(Asked(None, Bye(name, self.tiers[name].epoch)))
        self.restart(name, True)

    @rule(name=NODES, noticed=st.booleans())
    def restart(self, name: str, noticed: bool) -> None:
        self.lives += 1
        self.tiers[name] = Tier(self.lives)
        if noticed and name in self.connected:
            self.feed(Heard(name, self.lives, 0, Welcome()))

    @rule(name=NODES, changes=CHANGES, lost=RARELY)
    def change(self, name: str, changes: dict[bytes, int], lost: bool) -> None:
        tier = self.tiers[name]
        tier.entries |= changes
        tier.entries = {key: state for key, state in tier.entries.items() if state != GONE}
        tier.seq += 1
        if name in self.connected and not lost:
            delta = Delta(list(changes), bytes(changes.values()), bytes(len(changes)), u32s([8] * len(changes)))
            self.feed(Heard(name, tier.epoch, tier.seq, delta))

    @precondition(lambda self: self.asks)
    @rule(works=st.sampled_from([True, True, False]))
    def chunk(self, works: bool) -> None:
        ask = self.asks.pop(0)
        tier = self.tiers[ask.node]
        answer: Any = RemoteError(ErrorCode.UNREACHABLE, "lost")
        if works and ask.epoch == tier.epoch:
            answer = tier.answer(ask.sync) or answer
        self.feed(ChunkAnswer(ask.node, ask.sync.sync_id, answer))

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.9]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Tick())
        late = [number for number, (_, deadline) in self.open.items() if deadline <= self.now]
        assert not late, "a wait that did not end"

    @rule()
    def work(self) -> None:
        if self.state.busy:
            self.feed(Work())

    @rule(
        asker=st.sampled_from(["a", "b", "z"]),
        keys=st.lists(st.sampled_from(KEYS), max_size=4),
        wait_ms=st.sampled_from([0, 200, 5000]),
        expected=st.booleans(),
        tails=st.integers(0, 2),
        holes=RARELY,
    )
    def locate(self, asker: str, keys: list[bytes], wait_ms: int, expected: bool, tails: int, holes: bool) -> None:
        self.locates += 1
        message = Locate(asker, keys, wait_ms, expected, tails, holes)
        self.open[self.locates] = (message, self.now + wait_ms / 1e3)
        self.feed(Asked(self.locates, message))

    @invariant()
    def fits(self) -> None:
        self.locate("z", KEYS, 0, False, 0, True)
        self.state.validate()
        assert len(self.state.waiters) == len(self.open)
        assert self.connected == set(self.state.nodes.by_name)


Cluster.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase


class SlowCluster(Cluster):
    """Of locates that wait, one is looked at again in an event: what comes between makes no difference."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(state, "SETTLE_KEYS", 1)
        super().__init__()

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def many_wait(self, keys: list[bytes]) -> None:
        for _ in range(3):
            self.locate("z", keys, 5000, True, 0, False)

    def teardown(self) -> None:
        while self.state.busy:
            self.feed(Work())
        assert not self.state.waiters.unsettled
        self.state.validate()  # now for those too that nobody had looked at again
        self.patch.undo()


SlowCluster.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSlowCluster = SlowCluster.TestCase
