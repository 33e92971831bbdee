"""Two metaservers over one store that is slow, forgets and loses its writers: who reads sees a whole copy of a living life."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.bus.sync_gate import SyncGate
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import DIGEST_MOD, entry_digest
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
    SyncChunk,
)
from pegaflow.services.metaserver import commands, events
from pegaflow.services.metaserver.shared import SharedState

KEYS = [b"%d" % n for n in range(5)]
SIZE = 8
NODES = st.sampled_from("ab")
WHO = st.integers(0, 1)
RARELY = st.sampled_from([False, False, False, True])
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([GONE, PENDING, SEALED, SEALED]), min_size=1, max_size=3)


class Store:
    """What `redis_store` makes of the commands, without Redis."""

    def __init__(self) -> None:
        self.writers: dict[str, int] = {}
        self.records: dict[str, tuple[int, str]] = {}
        self.generations: dict[str, dict[bytes, int]] = {}


class Replica:
    def __init__(self, number: int, epoch: int) -> None:
        self.number, self.epoch = number, epoch
        self.state = SharedState(epoch, lambda: 0.1)
        self.state.nodes.gate = SyncGate(1)
        self.writes: deque[Any] = deque()
        self.looks: deque[commands.Look] = deque()
        self.found: deque[events.Looked] = deque()
        self.told: deque[events.Changed | str] = deque()
        self.claims: dict[str, commands.Claim] = {}
        self.connected: set[str] = set()
        self.asks: deque[commands.AskChunk] = deque()
        self.open: dict[int, Locate] = {}


class Tier:
    def __init__(self, epoch: int) -> None:
        self.epoch, self.seq = epoch, 0
        self.entries: dict[bytes, int] = {}


class SharedCatalogue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.epochs = itertools.count(100)
        self.numbers = itertools.count(1)
        self.store = Store()
        self.last: Located | None = None
        self.replicas = [Replica(n, next(self.epochs)) for n in range(2)]
        self.tiers = {name: Tier(next(self.epochs)) for name in "ab"}

    # --- what the shells do ------------------------------------------------------------------------------------------

    def feed(self, replica: Replica, event: events.Event) -> None:
        for command in replica.state.handle(event, self.now):
            match command:
                case commands.Connect(node):
                    replica.connected.add(node)
                    tier = self.tiers[node]
                    replica.asks = deque(ask for ask in replica.asks if ask.node != node)
                    self.feed(replica, events.Heard(node, tier.epoch, tier.seq, Welcome()))
                case commands.Disconnect(node):
                    replica.connected.discard(node)
                case commands.AskChunk():
                    replica.asks.append(command)
                case commands.Look():
                    replica.looks.append(command)
                case commands.Claim() | commands.Put() | commands.Show() | commands.Drop() | commands.Resign():
                    if isinstance(command, commands.Claim):
                        replica.claims[command.node] = command
                    elif isinstance(command, commands.Resign):
                        replica.claims.pop(command.node, None)
                    replica.writes.append(command)
                case commands.Reply(asker, Located() as answer):
                    self.answered(replica, asker, answer)
                case commands.Fail(int() as asker, code):
                    del replica.open[asker]
                    assert code == ErrorCode.STORE_UNREACHABLE

    def answered(self, replica: Replica, number: int, answer: Located) -> None:
        asked = replica.open.pop(number)  # KeyError: answered twice
        self.last = answer
        assert answer.check() is None and asked.asker not in answer.nodes
        for name, epoch in zip(answer.nodes, answer.epochs, strict=True):
            assert replica.state.nodes.by_name[name].epoch == epoch, "an owner that is known to be gone"
        for i, state in enumerate(answer.states):
            owned = answer.owners[i * answer.width] != NO_OWNER
            assert owned == (state == SEALED)

    def tell(self, what: events.Changed | str) -> None:
        for replica in self.replicas:
            replica.told.append(what)

    def write(self, replica: Replica) -> None:
        store, command = self.store, replica.writes.popleft()
        match command:
            case commands.Claim(node, epoch):
                renewed = store.writers.get(node) == replica.epoch
                mine = store.writers.setdefault(node, replica.epoch) == replica.epoch
                record = store.records.get(node)
                seen = record and events.Record(*record, len(store.generations.get(record[1], {})))
                self.feed(replica, events.Claimed(node, epoch, mine, renewed, seen))
            case commands.Put(generation, keys, entries, tell):
                rows = store.generations.setdefault(generation, {})
                for key, entry in zip(keys, entries, strict=True):
                    rows.pop(key, None)
                    if entry_state(entry) != GONE:
                        rows[key] = entry
                if tell:
                    self.tell(events.Changed(list(keys)))
            case commands.Show(node, epoch, generation):
                if store.writers.get(node) == replica.epoch:
                    store.records[node] = (epoch, generation)
                    self.tell(node)
            case commands.Resign(node, epoch):
                if store.writers.get(node) == replica.epoch:
                    del store.writers[node]
                    if epoch and store.records.get(node, (0, ""))[0] == epoch:
                        del store.records[node]
                        self.tell(node)
            case commands.Drop(generation):
                store.generations.pop(generation, None)

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(who=WHO, name=NODES)
    def hello(self, who: int, name: str) -> None:
        at = f"tcp://{name}:1"
        self.feed(self.replicas[who], events.Asked(None, Hello(name, self.tiers[name].epoch, at, at, at, "1")))

    @rule(name=NODES, changes=CHANGES, lost=RARELY)
    def change(self, name: str, changes: dict[bytes, int], lost: bool) -> None:
        tier = self.tiers[name]
        tier.entries |= changes
        tier.entries = {key: state for key, state in tier.entries.items() if state != GONE}
        tier.seq += 1
        delta = Delta(list(changes), bytes(changes.values()), bytes(len(changes)), u32s([SIZE] * len(changes)))
        for replica in self.replicas:
            if name in replica.connected and not lost:
                self.feed(replica, events.Heard(name, tier.epoch, tier.seq, delta))

    @rule(name=NODES)
    def beat(self, name: str) -> None:
        tier = self.tiers[name]
        total = sum(entry_digest(key, state, 0, SIZE) for key, state in tier.entries.items()) % DIGEST_MOD
        states = list(tier.entries.values())
        message = CatalogueBeat(total.to_bytes(16, "little"), states.count(PENDING), states.count(SEALED))
        for replica in self.replicas:
            if name in replica.connected:
                self.feed(replica, events.Heard(name, tier.epoch, tier.seq, message))

    @rule(name=NODES, really=RARELY, bye=st.booleans())
    def tier_restarts(self, name: str, really: bool, bye: bool) -> None:
        if really:
            for replica in self.replicas if bye else []:
                self.feed(replica, events.Asked(None, Bye(name, self.tiers[name].epoch)))
            self.tiers[name] = Tier(next(self.epochs))

    @precondition(lambda self: any(replica.writes for replica in self.replicas))
    @rule(who=WHO, count=st.integers(1, 6))
    def store_writes(self, who: int, count: int) -> None:
        replica = self.replicas[who]
        for _ in range(min(count, len(replica.writes))):
            self.write(replica)

    @precondition(lambda self: any(replica.looks for replica in self.replicas))
    @rule(who=WHO, fails=RARELY)
    def store_looks(self, who: int, fails: bool) -> None:
        """What it finds is on its way from now on."""
        replica = self.replicas[who]
        if not replica.looks:
            return
        look = replica.looks.popleft()
        answer: Any = RemoteError(ErrorCode.STORE_UNREACHABLE, "away")
        if not fails:
            rows = [self.store.generations.get(generation, {}) for generation in look.generations]
            answer = [[b"%d" % row[key] if key in row else None for key in look.keys] for row in rows]
        replica.found.append(events.Looked(look.ticket, answer))

    @precondition(lambda self: any(replica.found for replica in self.replicas))
    @rule(who=WHO)
    def store_answers(self, who: int) -> None:
        replica = self.replicas[who]
        if replica.found:
            self.feed(replica, replica.found.popleft())

    @rule(who=WHO)
    def hears(self, who: int) -> None:
        replica = self.replicas[who]
        if replica.told:
            told = replica.told.popleft()
            if isinstance(told, events.Changed):
                self.feed(replica, told)
            elif told in replica.claims:
                replica.writes.append(replica.claims[told])

    @rule(who=WHO, works=st.sampled_from([True, True, False]))
    def chunk(self, who: int, works: bool) -> None:
        replica = self.replicas[who]
        if not replica.asks:
            return
        ask = replica.asks.popleft()
        tier, sync = self.tiers[ask.node], ask.sync
        answer: Any = RemoteError(ErrorCode.UNREACHABLE, "lost")
        if works and ask.epoch == tier.epoch:
            keys, states = list(tier.entries), bytes(tier.entries.values())
            columns = (keys, states, bytes(len(keys)), u32s([SIZE] * len(keys)))
            answer = SyncChunk(sync.clone_epoch, sync.sync_id, 0, 1, tier.seq, *columns)
        self.feed(replica, events.ChunkAnswer(ask.node, sync.sync_id, answer))

    @rule(name=NODES)
    def heartbeat(self, name: str) -> None:
        """All goes as it should, for once."""
        for who in range(2):
            self.hello(who, name)
        self.settle()
        self.nobody_waits_in_vain()

    @rule(name=NODES)
    def a_claim_runs_out(self, name: str) -> None:
        """As when its writer stood still."""
        self.store.writers.pop(name, None)

    @rule(name=NODES, who=WHO, other=st.booleans())
    def a_claim_runs_out_before_its_writer_shows_what_it_has(self, name: str, who: int, other: bool) -> None:
        self.chunk(who, True)
        self.a_claim_runs_out(name)
        if other:
            self.hello(1 - who, name)
            self.store_writes_all(self.replicas[1 - who])

    @rule(name=NODES, who=WHO, changes=CHANGES, restarts=st.booleans(), bye=st.booleans())
    def much_happens_while_a_question_is_with_the_store(
        self, name: str, who: int, changes: dict[bytes, int], restarts: bool, bye: bool
    ) -> None:
        replica = self.replicas[who]
        self.locate(who, "z", KEYS, 5000)
        while replica.looks:
            self.store_looks(who, False)
        if restarts:
            self.tier_restarts(name, True, bye)
            self.hello(who, name)
        self.change(name, changes, False)
        for each in self.replicas:
            self.store_writes_all(each)
        while replica.told:
            self.hears(who)
        while replica.found:
            self.store_answers(who)

    @rule(who=WHO, really=RARELY, empty=st.booleans())
    def store_was_away(self, who: int, really: bool, empty: bool) -> None:
        if not really:
            return
        if empty:
            self.store = Store()
        for replica in self.replicas if empty else [self.replicas[who]]:
            replica.writes.clear()
            self.feed(replica, events.StoreBack())

    @rule(who=WHO, really=RARELY)
    def metaserver_restarts(self, who: int, really: bool) -> None:
        if really:
            self.replicas[who] = Replica(who, next(self.epochs))
            self.feed(self.replicas[who], events.Changed(None))

    @rule(seconds=st.sampled_from([0.1, 0.3, 0.9]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for replica in self.replicas:
            self.feed(replica, events.Tick())

    @rule(
        who=WHO,
        asker=st.sampled_from("az"),
        keys=st.lists(st.sampled_from(KEYS), max_size=4),
        wait_ms=st.sampled_from([0, 200, 5000]),
    )
    def locate(self, who: int, asker: str, keys: list[bytes], wait_ms: int) -> None:
        self.ask(self.replicas[who], Locate(asker, keys, wait_ms, True, 0, True))

    def ask(self, replica: Replica, message: Locate) -> int:
        number = next(self.numbers)
        replica.open[number] = message
        self.feed(replica, events.Asked(number, message))
        return number

    @invariant()
    def fits(self) -> None:
        for replica in self.replicas:
            replica.state.validate()
            assert len(replica.open) == len(replica.state.waiters) + len(replica.looks) + len(replica.found) - len(
                replica.state._looked_for
            )

    def settle(self) -> None:
        while any(replica.writes or replica.looks or replica.found or replica.told or replica.asks for replica in self.replicas):
            for who, replica in enumerate(self.replicas):
                self.store_writes_all(replica)
                self.store_looks(who, False)
                self.store_answers(who)
                self.hears(who)
                self.chunk(who, True)

    def nobody_waits_in_vain(self) -> None:
        """Nothing is on its way, and what the store shows would not answer those who wait."""
        for replica in self.replicas:
            for waiter in replica.state.waiters.all():
                for name, node in replica.state.nodes.by_name.items():
                    epoch, generation = self.store.records.get(name, (0, ""))
                    if epoch == node.epoch and name != waiter.message.asker:
                        rows = self.store.generations.get(generation, {})
                        assert not any(entry_state(rows[key]) == SEALED for key in waiter.message.keys if key in rows)

    def store_writes_all(self, replica: Replica) -> None:
        while replica.writes:
            self.write(replica)

    def teardown(self) -> None:
        """Once nothing fails any more, a few heartbeats are enough, and no generation is left over but those that are shown."""
        dead = self.store.writers.keys()
        for name in [name for name in dead if self.store.writers[name] not in {replica.epoch for replica in self.replicas}]:
            del self.store.writers[name]
        for _ in range(14):
            for name in "ab":
                for who in range(2):
                    self.hello(who, name)
                self.settle()
                self.beat(name)
                self.settle()
            self.time_passes(0.5)
            self.settle()
        for replica in self.replicas:
            replica.state.validate()
            assert not len(replica.state.waiters) and not replica.open
            self.ask(replica, Locate("z", KEYS, 0, False, 0, True))
            self.settle()
            best = [max(tier.entries.get(key, GONE) for tier in self.tiers.values()) for key in KEYS]
            assert self.last is not None and list(self.last.states) == best
            self.last = None
        for name, tier in self.tiers.items():
            epoch, generation = self.store.records[name]
            assert epoch == tier.epoch
            assert {key: entry_state(entry) for key, entry in self.store.generations.get(generation, {}).items()} == tier.entries


SharedCatalogue.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestSharedCatalogue = SharedCatalogue.TestCase
