"""The pure tier in a simulated world: memory that really holds content, READs that may land late, processes that die.

What is checked after every step: `validate()`; the bytes of every sealed page are those of its key; the bytes under every lease
are those of the leased keys, unless the generation says otherwise; a slot that somebody may still write belongs to nobody else.
At the end everything dies or ends, and nothing may be held.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Alive
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, SEALED, Located, NodeList
from pegaflow.common.wire.messages.loads import Cancel, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import Abandoned, Grant, Intent, Written
from pegaflow.common.wire.messages.transfer import Pin, Take, Taken
from pegaflow.services.tier import commands, events
from tier_world import KEYS, PAGE, POOL_GRANULES, SHARDS, TierWorld, content

RARELY = st.sampled_from([False, False, False, True])
MOSTLY = st.sampled_from([True, True, True, False])


class World(TierWorld):
    """What may happen, in any order."""

    # --- what happens ------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.feed(events.Backed(POOL_GRANULES))
        for engine in ("p", "d"):
            self.come(engine)

    def come(self, engine: str) -> None:
        self.attach(engine, "scheduler", 0)
        for rank in range(SHARDS):
            self.attach(engine, "rank", rank)

    @rule(engine=st.sampled_from(["p", "d"]), first=st.integers(0, 8), count=st.integers(1, 8), request=st.integers(0, 2))
    def intent(self, engine: str, first: int, count: int, request: int) -> None:
        attached = self.sessions.get(engine)
        if attached is None:
            return
        keys = KEYS[first : first + count]
        self.last_keys = keys
        names, owners = [f"r{request}"], u32s([0] * len(keys))
        rows = u32s([32] * len(keys))
        self.publish(attached, Intent(77, next(self.intents), keys, rows, b"", names, owners))

    @rule(engine=st.sampled_from(["p", "d"]), first=st.sampled_from([0, 0, 4, 8]), count=st.integers(1, 6))
    def save_all(self, engine: str, first: int, count: int) -> None:
        """The usual course, so that deep states are met often: intent, every rank writes, checksums come."""
        self.intent(engine, first, count, 0)
        for owner, keys, grant, owed in list(self.grants):
            if owner == engine:
                for rank in range(SHARDS):
                    self.say(owner, keys, grant, owed, rank, written=True)
        while self.hashes:
            self.answer_hash(0)

    @rule(first=st.sampled_from([0, 0, 4, 8]), count=st.integers(1, 8), stop=st.integers(0, 6))
    def fetch_some(self, first: int, count: int, stop: int) -> None:
        """A lookup whose pages come from elsewhere, as far as `stop` lets it get."""
        self.lookup("d", first, count, 0, True, 2000)
        steps = [self.locate_all, self.resumed, self.pin_all, self.read_all, self.hash_all]
        for step in steps[:stop]:
            step()

    @rule(first=st.sampled_from([0, 4, 8]), count=st.integers(1, 8))
    def stall(self, first: int, count: int) -> None:
        """A READ that does not end in time, and life that goes on meanwhile."""
        self.fetch_some(first, count, 3)
        self.time(2.5, True)
        self.save_all("p", (first + 4) % 12, 4)

    def locate_all(self) -> None:
        for ask in self.locates:
            states = bytes([SEALED] * len(ask.keys))
            answer = Located(states, 1, u32s([0] * len(ask.keys)), ["b"], u64s([5]), ["tcp://b"])
            self.locates = [other for other in self.locates if other is not ask]
            self.feed(events.LocateAnswer(ask.ask, answer))

    @rule()
    def resumed(self) -> None:
        """The next batches of what is being fetched get their turn."""
        while self.resumes:
            self.resumes -= 1
            self.feed(events.Resumed())

    def pin_all(self) -> None:
        while self.pins:
            self.answer_pin(list(range(len(self.pins[0].keys))), self.now, lies=False)

    def read_all(self) -> None:
        for fetch in sorted(self.reads):
            self.end_read(fetch, "done", lands=True)

    def hash_all(self) -> None:
        while self.hashes:
            self.answer_hash(0)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), written=MOSTLY, late=RARELY)
    def word(self, data: st.DataObject, written: bool, late: bool) -> None:
        engine, keys, grant, owed = data.draw(st.sampled_from(self.grants))
        rank = data.draw(st.integers(0, SHARDS - 1))
        self.say(engine, keys, grant, owed, rank, written, late)

    def say(
        self,
        engine: str,
        keys: list[bytes],
        grant: Grant,
        owed: dict[int, set[int]],
        rank: int,
        written: bool,
        late: bool = False,
    ) -> None:
        mine = [p for p, shards in owed.items() if rank in shards]
        attached = self.ranks.get((engine, rank))
        if attached is None or not mine:
            return
        at = {p: i for i, p in enumerate(grant.positions)}
        slots = [grant.slots[at[p] * SHARDS + rank] for p in mine]
        if written:
            for slot, position in zip(slots, mine, strict=True):
                self.memory[slot] = content(keys[position], rank)
        if late:
            return  # the bytes are there, the word is not said yet
        for p in mine:
            owed[p].discard(rank)
        if not any(owed.values()):
            self.grants = [held for held in self.grants if held[3] is not owed]
        kind = Written if written else Abandoned
        generations = u64s(grant.generations[at[p] * SHARDS + rank] for p in mine)
        marks = b"".join(grant.marks[8 * at[p] : 8 * at[p] + 8] for p in mine)
        self.publish(attached, kind(77, attached.session, grant.grant, u32s(slots), generations, marks))

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def hashed(self, data: st.DataObject) -> None:
        self.answer_hash(data.draw(st.integers(0, len(self.hashes) - 1)))

    @rule(
        engine=st.sampled_from(["p", "d"]),
        first=st.sampled_from([0, 0, 0, 4, 8]),
        count=st.integers(0, 8),
        tails=st.sampled_from([0, 0, 1, 2]),
        expected=st.booleans(),
        wait=st.sampled_from([2000, 2000, 300, 0]),
    )
    def lookup(self, engine: str, first: int, count: int, tails: int, expected: bool, wait: int) -> None:
        attached = self.sessions.get(engine)
        keys = KEYS[first : first + count]
        ends = [key for key in reversed(KEYS) if key not in keys][:tails]
        if attached is None or not keys + ends:
            return
        number = self.sent = next(self.asks)
        self.lookups[number], self.lookup_keys[number] = engine, (keys, ends)
        ask = Lookup(attached.session, attached.token, number, "r", keys, ends, wait, expected)
        self.feed(events.Asked("scheduler", ask))

    @precondition(lambda self: self.lookups)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.lookups)))
        attached = self.sessions[self.lookups[number]]
        self.feed(events.Asked("scheduler", Cancel(attached.session, attached.token, u64s([number]))))
        assert number not in self.lookups, "a cancelled lookup has an answer too"

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), loading=MOSTLY)
    def lease(self, data: st.DataObject, loading: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.leases)))
        engine = self.leases[number][0]
        attached = self.sessions.get(engine)
        if attached is None:
            del self.leases[number]
            return
        kind = Loading if loading else Release
        self.feed(events.Asked("scheduler", kind(attached.session, attached.token, u64s([number]))))
        if not loading:
            del self.leases[number]

    @precondition(lambda self: self.locates)
    @rule(data=st.data(), fail=RARELY, whole=MOSTLY)
    def located(self, data: st.DataObject, fail: bool, whole: bool) -> None:
        ask = self.locates.pop(0)
        if fail:
            self.feed(events.LocateAnswer(ask.ask, RemoteError(ErrorCode.DEADLINE, "test")))
            return
        there = [whole or data.draw(st.booleans()) for _ in ask.keys]
        owners = u32s(0 if yes else NO_OWNER for yes in there)
        states = bytes(SEALED if yes else GONE for yes in there)
        self.feed(events.LocateAnswer(ask.ask, Located(states, 1, owners, ["b"], u64s([5]), ["tcp://b"])))

    @precondition(lambda self: self.pins)
    @rule(data=st.data(), fail=RARELY, lies=RARELY, whole=MOSTLY)
    def pinned(self, data: st.DataObject, fail: bool, lies: bool, whole: bool) -> None:
        sent_at = self.now - data.draw(st.sampled_from([0.0, 0.0, 0.5, 3.9]))
        if fail:
            self.feed(events.PinAnswer(self.pins.pop(0).fetch, RemoteError(ErrorCode.UNREACHABLE, "test"), sent_at))
            return
        there = [i for i, _ in enumerate(self.pins[0].keys) if whole or data.draw(st.booleans())]
        self.answer_pin(there, sent_at, lies)

    @precondition(lambda self: self.reads)
    @rule(data=st.data(), outcome=st.sampled_from(["done", "done", "peer_lost"]))
    def read_ended(self, data: st.DataObject, outcome: str) -> None:
        fetch = data.draw(st.sampled_from(sorted(self.reads)))
        self.end_read(fetch, "peer_lost" if outcome == "peer_lost" else "done", lands=outcome != "peer_lost")

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 2.5]), lively=MOSTLY)
    def time(self, seconds: float, lively: bool) -> None:
        self.now += seconds
        if lively:
            for engine, attached in self.sessions.items():
                leases = u64s(number for number, held in self.leases.items() if held[0] == engine)
                lookups = u64s(number for number, owner in self.lookups.items() if owner == engine)
                self.publish(attached, Alive(77, 1 << 40, 0, u64s(), leases, lookups, self.sent), numbered=False)
            for (engine, rank), attached in self.ranks.items():
                grants = {
                    grant.grant
                    for owner, _, grant, owed in self.grants
                    if owner == engine and any(rank in s for s in owed.values())
                }
                self.publish(attached, Alive(77, 1 << 40, 0, u64s(grants)), numbered=False)
        self.feed(events.Tick())

    @rule(engine=st.sampled_from(["p", "d"]), really=st.integers(0, 9))
    def engine_dies(self, engine: str, really: int) -> None:
        if really:
            return
        scheduler = self.sessions.pop(engine, None)
        if scheduler is None:
            return
        self.grants = [held for held in self.grants if held[0] != engine]
        members = [scheduler, *(self.ranks.pop((engine, rank)) for rank in range(SHARDS))]
        for attached in members:
            self.feed(events.Proven(attached.session, attached.member))
        self.leases = {number: held for number, held in self.leases.items() if held[0] != engine}
        assert engine not in self.lookups.values()
        self.come(engine)

    @rule(count=st.integers(1, 24))
    def pin(self, count: int) -> None:
        self.feed(events.Asked("peer", Pin("b", KEYS[:count], SHARDS, 1000)))

    @rule(first=st.sampled_from([0, 4, 8]), count=st.integers(1, 8))
    def take(self, first: int, count: int) -> None:
        """Another tier leaves; its pages come as those of a fetch do."""
        tier = self.tier  # in test_adoption_property.py another one may have begun afterwards
        before = tier.counts["evicted"]
        ask = Take("b", 5, "tcp://b", KEYS[first : first + count], u32s([PAGE] * SHARDS))
        self.feed(events.Asked("peer", ask))
        assert tier.counts["evicted"] == before, "a page went for those of another tier"

    @rule(hand_over=st.booleans(), end=MOSTLY)
    def drain(self, hand_over: bool, end: bool) -> None:
        if self.tier.draining.asked and end:
            self.tier.draining.end()
        else:
            self.tier.draining.begin(hand_over)

    @rule(first=st.sampled_from([0, 4, 8]), taken=st.integers(0, 8), have=st.integers(0, 2))
    def hand_over_some(self, first: int, taken: int, have: int) -> None:
        """The usual course: pages are here, others are asked who has them, and take some of them; then everybody goes on."""
        self.tier.draining.end()
        self.offers.clear()
        self.save_all("p", first, 4)
        self.tier.draining.begin(True)
        self.time(1.0, True)
        self.offered(fail=False, count=0, alone=False)
        for ask in [ask for ask in self.locates if ask.holes]:
            self.locates = [other for other in self.locates if other is not ask]
            owners = u32s(0 if i < have else NO_OWNER for i in range(len(ask.keys)))
            states = bytes(SEALED if i < have else GONE for i in range(len(ask.keys)))
            self.feed(events.LocateAnswer(ask.ask, Located(states, 1, owners, ["b"], u64s([5]), ["tcp://b"])))
        self.offered(fail=False, count=taken, alone=False)

    @precondition(lambda self: self.offers)
    @rule(fail=RARELY, count=st.integers(0, 8), alone=RARELY)
    def offered(self, fail: bool, count: int, alone: bool) -> None:
        error = RemoteError(ErrorCode.UNREACHABLE, "test")
        if not self.offers:
            return
        match self.offers.pop(0):
            case commands.AskNodes(job):
                names = ["a"] if alone else ["a", "b", "c"]
                blank, zeros = [""] * len(names), u64s([0] * len(names))
                nodes = NodeList(names, u64s([5] * len(names)), ["up"] * len(names), blank, blank, blank, zeros, zeros)
                self.feed(events.NodesAnswer(job, error if fail else nodes))
            case commands.Offer(job):
                self.feed(events.TakeAnswer(job, error if fail else Taken(count)))


World.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestTier = World.TestCase
