"""What surrounds the pure tier in its property test: memory, the wire, the answers of others, and what must always hold."""

from __future__ import annotations

import itertools
from typing import Any

import xxhash
from hypothesis.stateful import RuleBasedStateMachine, invariant
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.digest import entry_digest
from pegaflow.common.wire.messages.attach import Attach, Attached, SessionBeat
from pegaflow.common.wire.messages.catalogue import GONE, CatalogueBeat, Delta
from pegaflow.common.wire.messages.loads import Hits
from pegaflow.common.wire.messages.saves import Grant, keys_digest
from pegaflow.common.wire.messages.transfer import Pinned
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


def content(key: bytes, shard: int) -> bytes:
    """What a page of this key holds, in place of its bytes."""
    return key + bytes((shard,))


def checksum(what: bytes | None) -> bytes:
    return bytes(xxhash.xxh3_128_digest(what or b"nothing"))


class TierWorld(RuleBasedStateMachine):
    """Its rules are in test_tier_property.py."""

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
        self.last_keys: list[bytes] = []
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

    def answer_hash(self, which: int) -> None:
        job = self.hashes.pop(which)
        self.feed(events.Hashed(job.job, [checksum(self.memory.get(slot)) for slot in job.slots]))

    def answer_pin(self, there: list[int], sent_at: float, lies: bool) -> None:
        pin = self.pins.pop(0)
        pages = [(i, shard) for i in there for shard in range(SHARDS)]
        sums = b"".join(checksum(b"lie" if lies else content(pin.keys[i], shard)) for i, shard in pages)
        self.read_keys[pin.fetch] = [pin.keys[i] for i in there]
        rows, offsets, lengths = u32s([32] * len(there)), u64s([0] * len(pages)), u32s([PAGE] * len(pages))
        answer = Pinned(9, u32s(there), rows, offsets, lengths, sums, f"b/{5:016x}", b"m", 0, 1 << 30)
        self.feed(events.PinAnswer(pin.fetch, answer, sent_at))

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
