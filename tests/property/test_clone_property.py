"""A clone converges on its tier, whatever is lost, repeated or restarted."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from mapped_generation import MappedGeneration, live_entries
from pegaflow.common.bus.clone import Ask, Clone, Effect
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import entry_digest
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, CatalogueBeat, Delta, SyncChunk
from pegaflow.services.tier import events, snapshots
from pegaflow.services.tier.commands import Fail, Publish, Reply
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pages import TOPIC
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState

SIZE = 64
CHUNK_KEYS = 2
JITTER = st.sampled_from([0.0, 0.1, 0.5])
TIMES = st.sampled_from([1, 1, 1, 0, 2])  # 0: lost, 2: repeated
RARELY = st.sampled_from([False, False, True])
CHANGES = st.dictionaries(st.sampled_from([b"%d" % n for n in range(5)]), st.sampled_from([GONE, PENDING, SEALED]), min_size=1)


def delta_of(changes: dict[bytes, int]) -> Delta:
    return Delta(list(changes), bytes(changes.values()), bytes(len(changes)), u32s([SIZE] * len(changes)))


class ModelTier:
    """The publishing side, exact: a snapshot is what was true at its head."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.entries: dict[bytes, int] = {}
        self.seq = 0
        self.history: dict[int, dict[bytes, int]] = {0: {}}
        self.walks: dict[tuple[int, int], tuple[int, list[tuple[bytes, int]]]] = {}

    def change(self, changes: dict[bytes, int]) -> tuple[int, int, Any]:
        for key, state in changes.items():
            self.entries.pop(key, None)
            if state != GONE:
                self.entries[key] = state
        self.seq += 1
        self.history[self.seq] = dict(self.entries)
        return (self.epoch, self.seq, delta_of(changes))

    def beat(self) -> tuple[int, int, Any]:
        total = sum(entry_digest(key, state, 0, SIZE) for key, state in self.entries.items()) % (1 << 128)
        states = list(self.entries.values())
        return (self.epoch, self.seq, CatalogueBeat(total.to_bytes(16, "little"), states.count(PENDING), states.count(SEALED)))

    def answer(self, ask: Ask) -> SyncChunk | None:
        walk = (ask.sync.clone_epoch, ask.sync.sync_id)
        if ask.epoch != self.epoch:
            return None
        if ask.sync.chunk == 0:
            self.walks[walk] = (self.seq, list(self.entries.items()))
        if walk not in self.walks:
            return None
        head, rows = self.walks[walk]
        chunks = max(1, -(-len(rows) // CHUNK_KEYS))
        mine = rows[ask.sync.chunk * CHUNK_KEYS : (ask.sync.chunk + 1) * CHUNK_KEYS]
        keys, states = [key for key, _ in mine], bytes(state for _, state in mine)
        return SyncChunk(*walk, ask.sync.chunk, chunks, head, keys, states, bytes(len(mine)), u32s([SIZE] * len(mine)))


class CloneAgainstTier(RuleBasedStateMachine):
    """Events come in order but may be lost or repeated; asks and answers may be lost, repeated or late."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.epochs = itertools.count(1)
        self.tier = ModelTier(next(self.epochs))
        self.histories = {self.tier.epoch: self.tier.history}
        self.sync_ids = itertools.count(1)
        self.start_clone()

    def start_clone(self) -> None:
        self.clone = Clone(next(self.epochs), self.sync_ids, MappedGeneration)
        self.events: deque[tuple[int, int, Any]] = deque([(self.tier.epoch, self.tier.seq, None)])  # the welcome
        self.asks: deque[Ask] = deque()
        self.answers: deque[tuple[int, SyncChunk | None]] = deque()

    def take(self, effects: Iterable[Effect]) -> None:
        self.asks.extend(effect for effect in effects if isinstance(effect, Ask))

    def hear(self, event: tuple[int, int, Any], jitter: float) -> None:
        epoch, seq, message = event
        if isinstance(message, Delta):
            self.take(self.clone.delta(epoch, seq, message, self.now, jitter))
        else:
            self.take(self.clone.shows(epoch, seq, message, self.now, jitter))

    def reply(self, answer: tuple[int, SyncChunk | None], jitter: float) -> None:
        sync_id, chunk = answer
        if chunk is None:
            self.take(self.clone.failed(sync_id, self.now, jitter))
        else:
            self.take(self.clone.chunk(chunk, self.now, jitter))

    @rule(changes=CHANGES)
    def tier_changes(self, changes: dict[bytes, int]) -> None:
        self.events.append(self.tier.change(changes))

    @rule(changes=CHANGES)
    def a_change_is_lost(self, changes: dict[bytes, int]) -> None:
        self.tier.change(changes)

    @precondition(lambda self: self.clone.left)
    @rule(changes=CHANGES, seq=st.integers(1, 5))
    def an_old_life_speaks(self, changes: dict[bytes, int], seq: int) -> None:
        self.events.append((self.clone.left[-1], seq, delta_of(changes)))

    @rule()
    def tier_beats(self) -> None:
        self.events.append(self.tier.beat())

    @rule(really=RARELY)
    def tier_restarts(self, really: bool) -> None:
        """What the old life had sent may still arrive."""
        if not really:
            return
        self.tier = ModelTier(next(self.epochs))
        self.histories[self.tier.epoch] = self.tier.history
        self.events.append((self.tier.epoch, 0, None))

    @rule(really=RARELY)
    def clone_restarts(self, really: bool) -> None:
        if really:
            self.start_clone()

    @rule(order=st.permutations(["events", "asks", "answers"]), keep=st.sampled_from([[], ["events"]]))
    def everything_arrives(self, order: list[str], keep: list[str]) -> None:
        """The two sockets know nothing of each other: a snapshot may overtake the deltas before it, or come after them."""
        while waiting := [name for name in order if name not in keep and getattr(self, name)]:
            if waiting[0] == "events":
                self.event_arrives(0.1, 1)
            elif waiting[0] == "asks":
                self.ask_arrives(1)
            else:
                self.answer_arrives(0.1, 1, False)
            self.what_it_knows_was_true_at_its_seq()

    @precondition(lambda self: self.events or self.asks)
    @rule(changes=CHANGES, lost=RARELY)
    def a_change_overtakes_a_snapshot(self, changes: dict[bytes, int], lost: bool) -> None:
        """It is not in the chunk that is under way, and is heard (or not) before that chunk comes."""
        while self.events:
            self.event_arrives(0.1, 1)
        if self.asks:
            self.ask_arrives(1)
        change = self.tier.change(changes)
        if not lost:
            self.hear(change, 0.1)
        if self.answers:
            self.answer_arrives(0.1, 1, False)

    @precondition(lambda self: self.events)
    @rule(jitter=JITTER, times=TIMES)
    def event_arrives(self, jitter: float, times: int) -> None:
        event = self.events.popleft()
        for _ in range(times):
            self.hear(event, jitter)

    @precondition(lambda self: self.asks)
    @rule(times=TIMES)
    def ask_arrives(self, times: int) -> None:
        ask = self.asks.popleft()
        for _ in range(times):
            self.answers.append((ask.sync.sync_id, self.tier.answer(ask)))

    @precondition(lambda self: self.answers)
    @rule(jitter=JITTER, times=TIMES, late=st.booleans())
    def answer_arrives(self, jitter: float, times: int, late: bool) -> None:
        answer = self.answers.pop() if late else self.answers.popleft()
        for _ in range(times):
            self.reply(answer, jitter)

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.1, 3.0]), jitter=JITTER)
    def time_passes(self, seconds: float, jitter: float) -> None:
        self.now += seconds
        self.take(self.clone.tick(self.now, jitter))

    @invariant()
    def what_it_knows_was_true_at_its_seq(self) -> None:
        self.clone.validate()
        if self.clone.whole and not self.clone.syncing:
            entries = {key: entry_state(entry) for key, entry in live_entries(self.clone).items()}
            assert entries == self.histories[self.clone.epoch][self.clone.seen]

    def teardown(self) -> None:
        """Once nothing is lost any more, a few heartbeats are enough."""
        for _ in range(12):
            self.events.append(self.tier.beat())
            self.everything_arrives(["events", "asks", "answers"], [])
            self.time_passes(0.5, 0.1)
        assert self.clone.epoch == self.tier.epoch and self.clone.whole and not self.clone.syncing
        assert {key: entry_state(entry) for key, entry in live_entries(self.clone).items()} == self.tier.entries


CloneAgainstTier.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestCloneAgainstTier = CloneAgainstTier.TestCase


STEP = st.tuples(st.sampled_from(["promise", "seal", "drop", "event", "lose", "ask", "answer", "beat"]), st.integers(0, 9))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, max_size=60))
def test_a_clone_follows_the_real_tier(monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, int]]) -> None:
    """The tier's own index, walk and digest; a snapshot taken while pages come and go."""
    monkeypatch.setattr(snapshots, "SYNC_KEYS", 2)
    place = Place("a", 5, "", 64 * GRANULE, "", "", "", "")
    tier = TierState(place, lambda count: bytes(count), lambda session: b"s.%d" % session)
    clone = Clone(9, itertools.count(1), MappedGeneration)
    now, head = 0.0, 0
    stream: deque[tuple[int, Any]] = deque([(0, None)])
    asked: deque[Ask] = deque()
    answers: deque[tuple[int, Any]] = deque()

    def run(event: events.Event) -> None:
        nonlocal head
        for command in tier.handle(event, now):
            if isinstance(command, Publish) and command.topic == TOPIC:
                head += isinstance(command.message, Delta)
                stream.append((head, command.message))
            elif isinstance(command, Reply | Fail):
                answers.append((command.asker, command.message if isinstance(command, Reply) else None))

    def take(effects: list[Effect]) -> None:
        asked.extend(effect for effect in effects if isinstance(effect, Ask))
        clone.validate()

    def hear() -> None:
        seq, message = stream.popleft()
        if isinstance(message, Delta):
            take(clone.delta(5, seq, message, now, 0.0))
        else:
            take(clone.shows(5, seq, message, now, 0.0))

    def answer() -> None:
        sync_id, message = answers.popleft()
        take(clone.failed(sync_id, now, 0.0) if message is None else clone.chunk(message, now, 0.0))

    run(events.Backed(64))
    for what, n in steps:
        key = b"key-%d" % n
        page = tier.pages.index.get(key)
        if what == "promise" and page is None:
            assert tier.pages.reserve(key, PageState.PENDING, (GRANULE,)) is not None
            run(events.Backed(64))
        elif what == "seal" and page is not None and page.state is PageState.PENDING:
            page.unwritten.clear()
            assert tier.pages.seal(page, [bytes(16)])
            run(events.Backed(64))
        elif what == "drop" and page is not None:
            tier.pages.drop(page)
            run(events.Backed(64))
        elif what == "beat":
            now += 0.6
            run(events.Tick())
            take(clone.tick(now, 0.0))
        elif what == "event" and stream:
            hear()
        elif what == "lose" and stream:
            stream.popleft()
        elif what == "ask" and asked:
            ask = asked.popleft()
            run(events.Asked(ask.sync.sync_id, ask.sync))
        elif what == "answer" and answers:
            answer()
    assert head == tier.pages.announced.head
    for _ in range(12):
        now += 0.6
        run(events.Tick())
        take(clone.tick(now, 0.0))
        while stream or asked or answers:
            if stream:
                hear()
            elif asked:
                ask = asked.popleft()
                run(events.Asked(ask.sync.sync_id, ask.sync))
            else:
                answer()
    assert clone.whole and not clone.syncing
    states = {PageState.PENDING: PENDING, PageState.SEALED: SEALED}
    assert {key: entry_state(entry) for key, entry in live_entries(clone).items()} == {
        key: states[page.state] for key, page in tier.pages.index.items()
    }
