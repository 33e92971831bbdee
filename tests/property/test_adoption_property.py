"""Lives of the tier one after the other: killed between any two commands, or within an entry, over one real slot table.

The world is that of test_tier_property.py. Its memory outlives the tier, as do its engines, unless they die meanwhile; ranks that
had a grant of an old life write into those slots until they attach again. Nothing of that may ever be served, or reused.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import Pool
from pegaflow.common.slot_table import ENTRY_BYTES, GRANULE, HEADER_BYTES, Identity, encode
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.messages.loads import Loading, Release
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.adoption import Remains, readers_until
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.sessions import holder_word
from pegaflow.services.tier.slots import slab_granules
from pegaflow.services.tier.state import TierState
from test_tier_property import MOSTLY, World
from tier_world import POOL_GRANULES, SHARDS, content

SIZE = POOL_GRANULES * GRANULE
IDENTITY = Identity(SIZE, slab_granules(POOL_GRANULES), b"b" * 16, b"s" * 16)
MEMBERS = [
    (engine, role, rank) for engine in ("p", "d") for role, rank in (("scheduler", 0), *(("rank", r) for r in range(SHARDS)))
]
Member = tuple[str, str, int]


def word(member: Member) -> int:
    engine, role, rank = member
    return holder_word(f"{engine}{role}{rank}".encode().ljust(16, b"-"))


class Lives(World):
    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pf-lives-"))
        self.pool = Pool.open(self.directory, IDENTITY, 1)
        super().__init__()
        self.fuse, self.tear = -1, 0  # commands until the tier is killed; how far the next one gets
        self.mute = False  # killed in this step: what the step does next, nobody hears
        self.absent: list[Member] = []  # alive, not attached to this life
        self.writing: list[tuple[Member, int]] = []  # slots of old grants that a living rank may write
        self.reading: list[tuple[str, Any, list[bytes]]] = []  # leases of old lives
        self.to_scan: list[tuple[int, int]] = []
        self.lives = 1
        self.begin_life(frozenset(), frozenset())

    # --- lives -------------------------------------------------------------------------------------------------------

    def begin_life(self, held: frozenset[int], dead: frozenset[int]) -> None:
        numbers = iter(range(1000 * self.lives, 1000 * self.lives + 1000))
        place = Place("a", 77, "pool", SIZE, "table", "i", "e", "c")
        slabs, backed = dict(self.pool.slabs()), self.pool.allocated // GRANULE
        self.tier = TierState(
            place,
            lambda n: next(numbers).to_bytes(n, "little"),
            session_topic,
            metaserver=True,
            remains=Remains(
                self.pool.table.floor, self.now, slabs, backed, held, dead, readers_until(self.pool.table.readers_until, self.now)
            ),
        )
        self.tier.agent = Agent("a/77", b"blob", 0)
        self.to_scan = list(slabs.items())

    @initialize()
    def begin(self) -> None:
        self.pool.allocate()
        super().begin()  # both engines attach

    def feed(self, event: events.Event) -> None:
        if self.mute:
            return
        for command in self.tier.handle(event, self.now):
            if self.fuse == 0:
                self.killed(command)
                return
            self.fuse -= 1
            self.carry_out(command)
        self.tier.validate()

    def carry_out(self, command: commands.Command) -> None:
        match command:
            case commands.Table(slot, generation, entry):
                if generation:
                    self.pool.table.raise_generation(slot, generation)
                self.pool.table.store(slot, entry)
            case commands.Cut(first, size):
                self.pool.table.cut(first, size)
            case commands.ReadersUntil(at):
                self.pool.table.readers_until = at
            case _:
                pass
        super().carry_out(command)

    def killed(self, command: commands.Command) -> None:
        """The tier dies in the middle of this command; READs that were open have landed or not."""
        if isinstance(command, commands.Table) and self.tear & 7:
            if command.generation:
                self.pool.table.raise_generation(command.slot, command.generation)
                self.generations[command.slot] = command.generation
            at, raw = HEADER_BYTES + ENTRY_BYTES * command.slot + 8, encode(command.entry)
            count = len(raw) * (self.tear & 7) // 7
            self.pool.table._memory[at : at + count] = raw[:count]
        if self.tear % 2:
            for fetch, read in self.reads.items():
                places = [(key, shard) for key in self.read_keys[fetch] for shard in range(SHARDS)]
                for (key, shard), offset in zip(places, read.local, strict=True):
                    self.memory[offset // GRANULE] = content(key, shard)
        self.next_life()

    def next_life(self) -> None:
        for engine, _, grant, owed in self.grants:
            at = {position: i for i, position in enumerate(grant.positions)}
            self.writing += [
                ((engine, "rank", rank), grant.slots[at[p] * SHARDS + rank]) for p, ranks in owed.items() for rank in ranks
            ]
        self.reading += self.leases.values()
        self.grants, self.leases = [], {}
        if self.tear & 32:
            self.rot()
        self.hashes, self.locates, self.pins, self.reads, self.given_up = [], [], [], {}, set()
        self.lookups, self.catalogue = {}, {}
        attached = [(engine, "scheduler", 0) for engine in self.sessions] + [
            (engine, "rank", rank) for engine, rank in self.ranks
        ]
        self.absent += attached
        self.sessions, self.ranks = {}, {}
        self.mute, self.fuse = True, -1
        gone = [engine for i, engine in enumerate(("p", "d")) if self.tear >> 3 + i & 1]
        for engine in gone:
            self.forget(engine)
        dead = frozenset(word(member) for member in MEMBERS if member[0] in gone)
        if self.tear & 64 and self.writing:
            torn, memory = HEADER_BYTES + ENTRY_BYTES * self.writing[0][1] + 50, self.pool.table._memory
            memory[torn : torn + 1] = bytes((memory[torn] ^ 1,))  # nobody can read whose slot that is
        self.pool.close(keep=True)
        self.lives += 1
        self.pool = Pool.open(self.directory, IDENTITY, self.lives)
        assert self.pool.adopted and self.pool.refused == {}
        self.begin_life(frozenset(map(word, self.absent)), dead)
        self.absent += [member for member in MEMBERS if member[0] in gone]  # started anew, not attached yet

    def rot(self) -> None:
        """A page that nobody is reading goes bad while no tier looks."""
        read = {slot for _, hits, _ in self.reading for slot in hits.slots}
        for page in self.tier.pages.index.values():
            if page.state is PageState.SEALED and not read & set(page.slots):
                self.memory[page.slots[0]] = b"rot"
                return

    def forget(self, engine: str) -> None:
        """All its processes are dead."""
        self.writing = [(member, slot) for member, slot in self.writing if member[0] != engine]
        self.reading = [lease for lease in self.reading if lease[0] != engine]
        self.absent = [member for member in self.absent if member[0] != engine]

    # --- what happens ------------------------------------------------------------------------------------------------

    @rule(after=st.integers(0, 40), tear=st.integers(0, 127))
    def arm(self, after: int, tear: int) -> None:
        self.fuse, self.tear = after, tear

    def scan_all(self) -> None:
        while self.to_scan and not self.mute:
            self.scan(8)

    def come(self, engine: str) -> None:
        for member in [member for member in MEMBERS if member[0] == engine and (member in self.absent or self.lives == 1)]:
            self.come_back(member)

    def come_back(self, member: Member) -> None:
        self.writing = [held for held in self.writing if held[0] != member]  # it has joined its copies
        if member[1] == "rank":
            self.reading = [lease for lease in self.reading if lease[0] != member[0]]
        self.attach(*member)
        if not self.mute and member in self.absent:
            self.absent.remove(member)

    @precondition(lambda self: self.to_scan)
    @rule(count=st.integers(1, 8))
    def scan(self, count: int) -> None:
        for first, size in self.to_scan[:count]:
            if not self.mute:
                self.feed(events.SlabFound(first, size, self.pool.rows(first, size) if size else []))
        if not self.mute:
            self.to_scan = self.to_scan[count:]
            if not self.to_scan:
                self.feed(events.SlabsEnded())

    @precondition(lambda self: self.absent)
    @rule(data=st.data(), everyone=MOSTLY)
    def attach_again(self, data: st.DataObject, everyone: bool) -> None:
        members = list(self.absent) if everyone else [data.draw(st.sampled_from(self.absent))]
        for member in members:
            self.come_back(member)

    @precondition(lambda self: self.writing)
    @rule(data=st.data())
    def write_late(self, data: st.DataObject) -> None:
        _, slot = data.draw(st.sampled_from(self.writing))
        self.memory[slot] = b"late"

    @rule(owner=st.sampled_from(["p", "d"]), first=st.sampled_from([0, 4, 8]), tear=st.integers(0, 127), late=MOSTLY)
    def killed_with_open_grants(self, owner: str, first: int, tear: int, late: bool) -> None:
        """One engine stands still with grants of the old life while the other one saves in the new one."""
        other = "d" if owner == "p" else "p"
        self.intent(owner, first, 6, 0)
        self.fuse, self.tear = 0, tear & 103  # nobody dies
        self.feed(events.Tick())
        self.mute = False
        self.scan_all()
        self.come(other)
        self.save_all(other, (first + 5) % 11, 6)
        self.save_all(other, (first + 2) % 11, 6)
        if late:
            for _, slot in self.writing:
                self.memory[slot] = b"late"

    @rule(engine=st.sampled_from(["p", "d"]), really=st.integers(0, 9))
    def engine_dies(self, engine: str, really: int) -> None:
        if not really:
            self.kill(engine)
            self.absent += [member for member in MEMBERS if member[0] == engine]

    def kill(self, engine: str) -> None:
        self.grants = [held for held in self.grants if held[0] != engine]
        members = [member for member in MEMBERS if member[0] == engine]
        absent = [member for member in members if member in self.absent]
        self.forget(engine)
        self.leases = {number: held for number, held in self.leases.items() if held[0] != engine}
        for member in members:
            attached = self.sessions.pop(engine, None) if member[1] == "scheduler" else self.ranks.pop((engine, member[2]), None)
            if attached is not None:
                self.feed(events.Proven(attached.session, attached.member))
            elif member in absent:
                self.feed(events.LockFree(word(member)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), loading=MOSTLY)
    def lease(self, data: st.DataObject, loading: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.leases)))
        attached = self.sessions.get(self.leases[number][0])
        if attached is not None:
            self.feed(events.Asked("s", (Loading if loading else Release)(attached.session, attached.token, u64s([number]))))
        if not loading or attached is None:
            self.leases.pop(number, None)

    def end_read(self, fetch: int, outcome: str, lands: bool) -> None:
        if fetch in self.reads:
            super().end_read(fetch, outcome, lands)

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def hear_again(self) -> None:
        self.mute = False

    @invariant()
    def sealed_bytes_are_right(self) -> None:
        for key, page in self.tier.pages.index.items():
            if page.state is PageState.SEALED and page.verified:
                for shard, slot in enumerate(page.slots):
                    assert self.memory.get(slot) == content(key, shard), "a page that is served with wrong bytes"

    @invariant()
    def old_leases_are_right(self) -> None:
        for _, hits, keys in self.reading:
            places = [(key, shard) for key in keys for shard in range(SHARDS)]
            for (key, shard), slot, generation in zip(places, hits.slots, hits.generations, strict=True):
                if self.pool.table.generation(slot) == generation:
                    assert self.memory.get(slot) == content(key, shard), "a lease of an old life shows other bytes"

    @invariant()
    def slots_of_old_writers_are_nobodys(self) -> None:
        theirs = {slot for _, slot in self.writing}
        for page in [*self.tier.pages.index.values(), *self.tier.pages.aside]:
            assert not theirs & set(page.slots), "a slot that an old member may write is in use"

    def teardown(self) -> None:
        self.mute, self.fuse = False, -1
        try:
            self.scan_all()
            for engine in ("p", "d"):
                self.kill(engine)
            self.end_all()
            view = self.tier.adoption.view()
            assert not any(view.values()) and not self.tier.pages.held, f"kept out of use for ever: {view}"
            assert not self.tier.pages.allocator.withheld_granules()
        finally:
            self.pool.close(keep=False)
            shutil.rmtree(self.directory)

    def end_all(self) -> None:
        self.now += 100
        self.feed(events.Tick())
        while self.hashes or self.reads:
            self.hash_all()
            for fetch in list(self.reads):
                del self.reads[fetch]
                self.feed(events.ReadEnded(fetch, "reaped" if fetch in self.given_up else "peer_lost"))
        self.now += 100
        self.feed(events.Tick())
        dump = self.tier.dump()
        names = "aside", "references", "grants", "hashing", "verifying", "leases", "pins", "lookups", "waiters", "fetches"
        assert not any(dump[name] for name in names), {name: dump[name] for name in names}
        assert set(dump["pages"]) <= {"sealed"} and not dump["sessions"]


Lives.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
