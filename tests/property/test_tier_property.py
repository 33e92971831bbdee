"""The pure tier in a simulated world: memory that really holds content, READs that may land late, processes that die.

What is checked after every step: `validate()`; the bytes of every sealed page are those of its key; the bytes under every lease
are those of the leased keys, unless the generation says otherwise; a slot that somebody may still write belongs to nobody else.
At the end everything dies or ends, and nothing may be held.
"""

from __future__ import annotations

import itertools
from typing import Any

import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.digest import entry_digest
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Alive, Attach, Attached, SessionBeat
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, SEALED, CatalogueBeat, Delta, Located, NodeList
from pegaflow.common.wire.messages.loads import Cancel, Hits, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import Abandoned, Grant, Intent, Written, keys_digest
from pegaflow.common.wire.messages.transfer import Pin, Pinned, Take, Taken
from pegaflow.common.wire.version import PROTOCOL
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.state import TierState

FINGERPRINT = b"f" * 16
PAGE = 2 * GRANULE
SHARDS = 2
POOL_GRANULES = 48
KEYS = [FINGERPRINT + bytes((i,)) * 32 for i in range(16)]
RARELY = st.sampled_from([False, False, False, True])
MOSTLY = st.sampled_from([True, True, True, False])


def content(key: bytes, shard: int) -> bytes:
    """What a page of this key holds, in place of its bytes."""
    return key + bytes((shard,))


def checksum(what: bytes | None) -> bytes:
    return bytes(xxhash.xxh3_128_digest(what or b"nothing"))


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        place = Place("a", 77, "pool", POOL_GRANULES * GRANULE, "table", "i", "e", "c")
        numbers = itertools.count(1)
        self.tier = TierState(place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, metaserver=True)
        self.tier.agent = Agent("a/77", b"blob", 0)
        self.tier.fetches.min_batch_bytes = 2 * PAGE * SHARDS
        self.now = 100.0
        self.memory: dict[int, bytes] = {}
        self.generations: dict[int, int] = {}
        self.sessions: dict[str, Attached] = {}
        self.ranks: dict[tuple[str, int], Attached] = {}
        self.seqs: dict[tuple[int, int], int] = {}
        self.intents = itertools.count(1)
        self.grants: list[tuple[str, list[bytes], Grant, dict[int, set[int]]]] = []
        self.hashes: list[commands.Hash] = []
        self.locates: list[commands.Locate] = []
        self.resumes = 0
        self.pins: list[commands.PinAt] = []
        self.reads: dict[int, commands.Read] = {}
        self.read_keys: dict[int, list[bytes]] = {}
        self.given_up: set[int] = set()
        self.lookups: dict[int, str] = {}
        self.lookup_keys: dict[int, tuple[list[bytes], list[bytes]]] = {}
        self.leases: dict[int, tuple[str, Hits, list[bytes]]] = {}
        self.offers: list[commands.AskNodes | commands.Offer] = []
        self.asks = itertools.count(1)
        self.sent = 0
        self.catalogue: dict[bytes, tuple[int, int, int]] = {}
        self.deltas = 0

    # --- the world ---------------------------------------------------------------------------------------------------

    def feed(self, event: events.Event) -> None:
        for command in self.tier.handle(event, self.now):
            self.carry_out(command)
        self.tier.validate()

    def carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Table(slot, generation, _):
                if generation:
                    assert generation > self.generations.get(slot, 0), "a generation went back"
                    self.generations[slot] = generation
            case commands.Reply(asker, message):
                self.replied(asker, message)
            case commands.Publish(topic, message):
                self.heard(topic, message)
            case commands.Hash():
                self.hashes.append(command)
            case commands.Locate():
                self.locates.append(command)
            case commands.AskNodes() | commands.Offer():
                self.offers.append(command)
            case commands.Resume():
                self.resumes += 1
            case commands.PinAt():
                self.pins.append(command)
            case commands.Read():
                self.reads[command.fetch] = command
            case commands.GiveUp(fetch):
                assert fetch in self.reads
                self.given_up.add(fetch)
            case _:
                pass

    def replied(self, asker: Any, message: Any) -> None:
        if isinstance(message, Attached):
            engine, role, rank = asker
            if role == "scheduler":
                self.sessions[engine] = message
            else:
                self.ranks[engine, rank] = message
            self.seqs[message.session, message.member] = message.first_seq
        elif isinstance(message, Hits):
            number = message.lookup
            engine = self.lookups.pop(number)
            keys, tails = self.lookup_keys.pop(number)
            got = keys[: message.full] + ([tails[message.tail]] if message.tail >= 0 else [])
            assert len(message.slots) == len(got) * SHARDS
            assert message.tail < 0 or message.full == len(keys), "a tail without its prefix"
            if message.lease:
                self.leases[message.lease] = (engine, message, got)

    def heard(self, topic: bytes, message: Any) -> None:
        if isinstance(message, Delta):
            self.deltas += 1
            for key, *entry in zip(message.keys, message.states, message.levels, message.sizes, strict=True):
                if entry[0] == GONE:
                    self.catalogue.pop(key, None)
                else:
                    self.catalogue[key] = (entry[0], entry[1], entry[2])
        elif isinstance(message, CatalogueBeat):
            total = sum(entry_digest(key, *entry) for key, entry in self.catalogue.items()) % (1 << 128)
            assert message.digest == total.to_bytes(16, "little"), "the catalogue heard something else"
        elif isinstance(message, Grant):
            engine = next(name for name, attached in self.sessions.items() if attached.topic == topic)
            keys = self.last_keys
            assert message.digest == keys_digest(keys)
            assert not (self.tier.draining.asked and message.positions), "a save was granted while the tier drains"
            owed = {p: set(range(SHARDS)) for p in message.positions}
            if owed:
                self.grants.append((engine, keys, message, owed))
        elif isinstance(message, SessionBeat):
            assert topic

    def publish(self, attached: Attached, message: Any, *, numbered: bool = True) -> None:
        at = (attached.session, attached.member)
        seq = self.seqs[at] if numbered else 0
        if numbered:
            self.seqs[at] += 1
        self.feed(events.Published(attached.session, attached.member, seq, attached.token, message))

    def attach(self, engine: str, role: str, rank: int) -> None:
        layouts, sizes = (b"l" * 16 * SHARDS, u32s([PAGE] * SHARDS)) if role == "scheduler" else (b"l" * 16, u32s([PAGE]))
        fingerprint = FINGERPRINT if role == "scheduler" else b""
        nonce = f"{engine}{role}{rank}".encode().ljust(16, b"-")
        ask = Attach(
            PROTOCOL, "test", engine, role, rank, rank, SHARDS, 0, 1, b"b" * 16, fingerprint, [], layouts, sizes, "read_write",
            1, "0" * 32, nonce, 1,
        )  # fmt: skip
        self.feed(events.Asked((engine, role, rank), ask))

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

    def answer_hash(self, which: int) -> None:
        job = self.hashes.pop(which)
        self.feed(events.Hashed(job.job, [checksum(self.memory.get(slot)) for slot in job.slots]))

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

    def answer_pin(self, there: list[int], sent_at: float, lies: bool) -> None:
        pin = self.pins.pop(0)
        pages = [(i, shard) for i in there for shard in range(SHARDS)]
        sums = b"".join(checksum(b"lie" if lies else content(pin.keys[i], shard)) for i, shard in pages)
        self.read_keys[pin.fetch] = [pin.keys[i] for i in there]
        rows, offsets, lengths = u32s([32] * len(there)), u64s([0] * len(pages)), u32s([PAGE] * len(pages))
        answer = Pinned(9, u32s(there), rows, offsets, lengths, sums, f"b/{5:016x}", b"m", 0, 1 << 30)
        self.feed(events.PinAnswer(pin.fetch, answer, sent_at))

    @precondition(lambda self: self.reads)
    @rule(data=st.data(), outcome=st.sampled_from(["done", "done", "peer_lost"]))
    def read_ended(self, data: st.DataObject, outcome: str) -> None:
        fetch = data.draw(st.sampled_from(sorted(self.reads)))
        self.end_read(fetch, "peer_lost" if outcome == "peer_lost" else "done", lands=outcome != "peer_lost")

    def end_read(self, fetch: int, outcome: str, lands: bool) -> None:
        read = self.reads.pop(fetch)
        if lands:
            places = [(key, shard) for key in self.read_keys[fetch] for shard in range(SHARDS)]
            for (key, shard), offset in zip(places, read.local, strict=True):
                self.memory[offset // GRANULE] = content(key, shard)
        if fetch in self.given_up:
            self.given_up.discard(fetch)
            outcome = "landed_late"
        self.feed(events.ReadEnded(fetch, outcome))

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
        before = self.tier.counts["evicted"]
        ask = Take("b", 5, "tcp://b", KEYS[first : first + count], u32s([PAGE] * SHARDS))
        self.feed(events.Asked("peer", ask))
        assert self.tier.counts["evicted"] == before, "a page went for those of another tier"

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

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def sealed_bytes_are_right(self) -> None:
        for key, page in self.tier.pages.index.items():
            if page.state is PageState.SEALED:
                for shard, slot in enumerate(page.slots):
                    assert self.memory.get(slot) == content(key, shard), "a sealed page with wrong bytes"

    @invariant()
    def leased_bytes_are_right(self) -> None:
        for _, hits, keys in self.leases.values():
            places = [(key, shard) for key in keys for shard in range(SHARDS)]
            for (key, shard), slot, generation in zip(places, hits.slots, hits.generations, strict=True):
                if self.generations[slot] == generation:
                    assert self.memory.get(slot) == content(key, shard), "a lease shows wrong bytes and the generation agrees"

    @invariant()
    def writable_slots_have_one_owner(self) -> None:
        writable: list[int] = []
        for _, _, grant, owed in self.grants:
            at = {p: i for i, p in enumerate(grant.positions)}
            writable += [grant.slots[at[p] * SHARDS + rank] for p, ranks in owed.items() for rank in ranks]
        for read in self.reads.values():
            writable += [offset // GRANULE for offset in read.local]
        assert len(writable) == len(set(writable)), "two may write one slot"
        sealed = {slot for page in self.tier.pages.index.values() if page.state is PageState.SEALED for slot in page.slots}
        assert not sealed & set(writable), "a sealed slot can still be written"

    def teardown(self) -> None:
        if not self.sessions:
            return
        for engine in ("p", "d"):
            scheduler = self.sessions.pop(engine)
            for attached in [scheduler, *(self.ranks.pop((engine, rank)) for rank in range(SHARDS))]:
                self.feed(events.Proven(attached.session, attached.member))
        self.now += 100
        self.feed(events.Tick())
        while self.hashes or self.reads:
            for job in self.hashes:
                self.hashes = [other for other in self.hashes if other is not job]
                self.feed(events.Hashed(job.job, [checksum(self.memory.get(slot)) for slot in job.slots]))
            for fetch in list(self.reads):
                del self.reads[fetch]
                self.feed(events.ReadEnded(fetch, "reaped" if fetch in self.given_up else "peer_lost"))
        self.now += 100
        self.feed(events.Tick())
        dump = self.tier.dump()
        held = {
            name: dump[name]
            for name in ("aside", "references", "grants", "hashing", "leases", "pins", "lookups", "waiters", "fetches")
        }
        assert not any(held.values()), f"held at the end: {held}"
        assert set(dump["pages"]) <= {"sealed"} and not dump["sessions"]


World.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestTier = World.TestCase
