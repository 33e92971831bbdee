"""The pure tier as scripts: events in, commands out."""

from __future__ import annotations

import itertools
from typing import Any, Self

import pytest
import xxhash
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Ack, Alive, Attach, Attached, SessionBeat
from pegaflow.common.wire.messages.catalogue import GONE, NO_OWNER, PENDING, SEALED, Delta, Located, Sync
from pegaflow.common.wire.messages.loads import Hits, Loading, Lookup, Release
from pegaflow.common.wire.messages.saves import GRANTED, HAVE, NO_SPACE, REFUSED, Abandoned, Grant, Intent, Written
from pegaflow.common.wire.messages.saves import PENDING as ELSEWHERE
from pegaflow.common.wire.messages.space import Keep, Probe, Unkeep
from pegaflow.common.wire.messages.transfer import Pin, Pinned
from pegaflow.services.tier import commands, events, state
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.state import Place, TierState

FINGERPRINT = b"f" * 16
EPOCH = 77


def key(number: int) -> bytes:
    return FINGERPRINT + number.to_bytes(4, "big") * 8


def checksum(text: str) -> bytes:
    return bytes(xxhash.xxh3_128_digest(text.encode()))


class Script:
    """A tier of `pages` one-granule pages, and engines with `shards` ranks."""

    def __init__(self, pages: int = 64, shards: int = 1, metaserver: bool = False, fingerprint: bytes = b"") -> None:
        numbers = itertools.count(1)
        place = Place("a", EPOCH, "pool", pages * GRANULE, "table", "i", "e", "c")
        self.tier = TierState(
            place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, metaserver=metaserver, fingerprint=fingerprint
        )
        self.tier.agent = Agent("a/77", b"blob", 4096)
        self.now, self.shards = 10.0, shards
        self.members: dict[tuple[str, str, int], Attached] = {}
        self.seqs: dict[tuple[int, int], int] = {}
        self.intents = itertools.count(1)
        self.feed(events.Backed(pages))

    def feed(self, event: events.Event) -> list[commands.Command]:
        out = self.last = self.tier.handle(event, self.now)
        self.tier.validate()
        return out

    def ask(self, message: Any) -> Any:
        """The reply, or the `Fail`; None: not answered yet."""
        for command in self.feed(events.Asked("asker", message)):
            if isinstance(command, commands.Reply):
                return command.message
            if isinstance(command, commands.Fail):
                return command
        return None

    def attach(self, engine: str = "p", role: str = "scheduler", rank: int = 0, **changes: Any) -> Any:
        count = self.shards if role == "scheduler" else 1
        fields: dict[str, Any] = {
            "protocol": 1,
            "package": "test",
            "engine": engine,
            "role": role,
            "rank": rank,
            "shard": rank,
            "shards": self.shards,
            "stripe": 0,
            "stripes": 1,
            "base": b"b" * 16,
            "fingerprint": FINGERPRINT if role == "scheduler" else b"",
            "factors": ["model=tiny"],
            "layouts": b"l" * 16 * count,
            "page_bytes": u32s([GRANULE] * count),
            "mode": "read_write",
            "pid": 1,
            "lock_name": "0" * 32,
            "nonce": f"{engine}{role}{rank}".encode().ljust(16, b"-"),
            "first_seq": 1,
        }
        answer = self.ask(Attach(**(fields | changes)))
        if isinstance(answer, Attached):
            self.members[engine, role, rank] = answer
            self.seqs.setdefault((answer.session, answer.member), answer.first_seq)
        return answer

    def engine(self, name: str = "p") -> Self:
        self.attach(name)
        for rank in range(self.shards):
            self.attach(name, "rank", rank)
        return self

    def publish(self, who: tuple[str, str, int], message: Any) -> list[commands.Command]:
        attached = self.members[who]
        at = (attached.session, attached.member)
        seq = 0
        if not isinstance(message, Alive):
            seq, self.seqs[at] = self.seqs[at], self.seqs[at] + 1
        return self.feed(events.Published(attached.session, attached.member, seq, attached.token, message))

    def intent(self, numbers: list[int], engine: str = "p", request: str = "r") -> Grant:
        keys = [key(n) for n in numbers]
        rows, owners = u32s([16] * len(keys)), u32s([0] * len(keys))
        out = self.publish((engine, "scheduler", 0), Intent(EPOCH, next(self.intents), keys, rows, b"", [request], owners))
        return next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))

    def word(
        self, grant: Grant, engine: str = "p", rank: int = 0, kind: Any = Written, changes: dict[str, Any] | None = None
    ) -> list[commands.Command]:
        session = self.members[engine, "rank", rank].session
        fields: dict[str, Any] = {
            "epoch": EPOCH,
            "session": session,
            "grant": grant.grant,
            "slots": u32s(grant.slots[rank :: self.shards]),
            "generations": u64s(grant.generations[rank :: self.shards]),
            "marks": grant.marks,
        }
        return self.publish((engine, "rank", rank), kind(**(fields | (changes or {}))))

    def hashed(self, out: list[commands.Command]) -> list[commands.Command]:
        done: list[commands.Command] = []
        for command in out:
            if isinstance(command, commands.Hash):
                done += self.feed(events.Hashed(command.job, [checksum(f"page {slot}") for slot in command.slots]))
        return done

    def save(self, numbers: list[int], engine: str = "p", request: str = "r") -> Grant:
        grant = self.intent(numbers, engine, request)
        for rank in range(self.shards):
            self.hashed(self.word(grant, engine, rank))
        return grant

    def lookup(
        self, numbers: list[int], tails: list[int] | None = None, engine: str = "p", wait_ms: int = 1000, expected: bool = False
    ) -> Any:
        attached = self.members[engine, "scheduler", 0]
        keys, ends = [key(n) for n in numbers], [key(n) for n in tails or []]
        self.looked = Lookup(attached.session, attached.token, next(self.intents), "r", keys, ends, wait_ms, expected)
        return self.ask(self.looked)

    def sealed(self) -> set[int]:
        return {int.from_bytes(k[16:20], "big") for k, page in self.tier.pages.index.items() if page.state == "sealed"}


def deltas(out: list[commands.Command]) -> list[tuple[bytes, int]]:
    return [
        (k, state)
        for command in out
        if isinstance(command, commands.Publish) and isinstance(command.message, Delta)
        for k, state in zip(command.message.keys, command.message.states, strict=True)
    ]


def hits(out: list[commands.Command]) -> list[Hits]:
    return [c.message for c in out if isinstance(c, commands.Reply) and isinstance(c.message, Hits)]


# --- attach -----------------------------------------------------------------------------------------------------------


def test_another_protocol_is_refused_with_both_numbers() -> None:
    answer = Script().attach(protocol=9)
    assert answer.code == "protocol_mismatch"
    assert "protocol 9" in answer.text and "the tier 1" in answer.text


def test_another_fingerprint_than_the_tier_takes_is_refused_with_both_values() -> None:
    answer = Script(fingerprint=b"x" * 16).attach()
    assert answer.code == "fingerprint_mismatch"
    assert FINGERPRINT.hex() in answer.text and (b"x" * 16).hex() in answer.text and "model=tiny" in answer.text


def test_ranks_of_one_engine_must_agree() -> None:
    script = Script()
    script.attach()
    answer = script.attach(role="rank", base=b"c" * 16)
    assert answer.code == "fingerprint_mismatch"
    assert (b"b" * 16).hex() in answer.text and (b"c" * 16).hex() in answer.text


def test_a_rank_with_another_page_is_refused_with_both_sizes() -> None:
    script = Script()
    script.attach()
    answer = script.attach(role="rank", page_bytes=u32s([2 * GRANULE]))
    assert answer.code == "layout_mismatch"
    assert str(GRANULE) in answer.text and str(2 * GRANULE) in answer.text


def test_pages_that_can_never_fit_are_refused_at_attach() -> None:
    answer = Script(pages=16).attach(page_bytes=u32s([GRANULE * 16]))
    assert answer.code == "pool_too_small"
    assert "make the pool larger" in answer.text


def test_attach_is_idempotent_by_nonce_and_another_process_must_wait_for_the_death_of_the_first() -> None:
    script = Script()
    first = script.attach()
    assert script.attach() == first
    other = script.attach(nonce=b"n" * 16)
    assert other.code == "session_taken"
    out = script.feed(events.Proven(first.session, first.member))
    assert commands.Forget(first.session, first.member, True) in out
    assert script.attach(nonce=b"n" * 16).session != first.session


# --- saving -----------------------------------------------------------------------------------------------------------


def test_the_table_stands_before_the_grant_and_sealed_before_its_delta() -> None:
    script = Script().engine()
    keys = [key(1)]
    out = script.publish(("p", "scheduler", 0), Intent(EPOCH, 1, keys, u32s([16]), b"", ["r"], u32s([0])))
    kinds = [type(c).__name__ if not isinstance(c, commands.Publish) else c.message.KIND for c in out]
    assert kinds == ["Cut", "Table", "grant", "intent_seen", "delta"]
    assert out[1].generation == 1  # type: ignore[union-attr]
    assert deltas(out) == [(key(1), PENDING)]
    grant = next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))
    done = script.hashed(script.word(grant))
    assert [type(c).__name__ for c in done] == ["Table", "Publish"]
    assert deltas(done) == [(key(1), SEALED)]


def test_nothing_is_granted_before_every_writer_is_attached() -> None:
    script = Script(shards=2)
    script.attach()
    script.attach(role="rank", rank=0)
    assert list(script.intent([1]).statuses) == [REFUSED]
    script.attach(role="rank", rank=1)
    assert list(script.intent([1]).statuses) == [GRANTED]


def test_a_key_is_sealed_when_all_shards_are_written() -> None:
    script = Script(shards=2).engine()
    grant = script.intent([1])
    assert script.hashed(script.word(grant, rank=0)) == []
    assert script.sealed() == set()
    script.hashed(script.word(grant, rank=1))
    assert script.sealed() == {1}


def test_one_abandoned_shard_leaves_no_trace_once_the_other_has_spoken() -> None:
    script = Script(shards=2).engine()
    grant = script.intent([1])
    out = script.word(grant, rank=0, kind=Abandoned)
    assert deltas(out) == [(key(1), GONE)]
    assert script.tier.dump()["aside"] == 1, "rank 1 may still write its slot"
    script.word(grant, rank=1)
    dump = script.tier.dump()
    assert (dump["aside"], dump["grants"], dump["pages"]) == (0, 0, {})


def test_what_is_there_costs_no_copy_and_what_is_promised_is_not_promised_twice() -> None:
    script = Script().engine().engine("q")
    script.save([1])
    script.intent([2])
    assert list(script.intent([1, 2, 3], "q").statuses) == [HAVE, ELSEWHERE, GRANTED]


@pytest.mark.parametrize(
    "changes",
    [{"grant": 99}, {"epoch": 1}, {"generations": u64s([5])}, {"marks": b"other..!"}, {"slots": u32s([9])}, {"session": 5}],
)
def test_a_word_that_does_not_fit_exactly_is_ignored(changes: dict[str, Any]) -> None:
    script = Script().engine()
    grant = script.intent([1])
    assert script.hashed(script.word(grant, changes=changes)) == []
    assert script.tier.dump()["pages"] == {"pending": 1}


def test_a_gap_in_the_numbers_is_not_applied_and_the_next_one_is_named_again() -> None:
    script = Script().engine()
    member = script.members["p", "scheduler", 0]
    late = Intent(EPOCH, 9, [key(1)], u32s([16]), b"", ["r"], u32s([0]))
    out = script.feed(events.Published(member.session, member.member, 5, member.token, late))
    assert next(c.message for c in out if isinstance(c, commands.Publish)) == Ack(member.member, 1)
    assert script.tier.dump()["pages"] == {}


def test_a_prompt_larger_than_the_pool_keeps_its_head() -> None:
    script = Script(pages=16).engine()
    script.save([100, 101, 102], request="older")
    script.now += 60  # past what a save keeps anyway
    statuses = script.intent(list(range(20))).statuses
    granted = [n for n, status in enumerate(statuses) if status == GRANTED]
    assert granted == list(range(len(granted))) and len(granted) == 16
    assert set(statuses[len(granted) :]) == {NO_SPACE}
    again = Script(pages=16).engine()
    for step in range(5):
        again.save(list(range(4 * step, 4 * step + 4)))
        again.now += 60
    assert again.sealed() == set(range(16)), "later steps of a request do not evict its earlier ones"


def test_children_are_evicted_before_their_parents() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)), request="old")
    answer = script.lookup(list(range(16)))
    script.ask(Release(script.looked.session, script.looked.token, u64s([answer.lease])))
    script.now += 60
    script.save([50, 51, 52], request="new")
    assert script.sealed() == set(range(13)) | {50, 51, 52}


def test_a_leased_page_is_not_evicted() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)), request="old")
    answer = script.lookup(list(range(16)))
    script.ask(Loading(script.looked.session, script.looked.token, u64s([answer.lease])))
    script.now += 60
    assert set(script.intent([50, 51], request="new").statuses) == {NO_SPACE}
    script.ask(Release(script.looked.session, script.looked.token, u64s([answer.lease])))
    assert set(script.intent([50, 51], request="new").statuses) == {GRANTED}


def test_another_page_size_gets_its_share() -> None:
    script = Script(pages=32).engine()
    script.save(list(range(32)), request="old")
    script.now += 60
    script.attach("big", page_bytes=u32s([2 * GRANULE]), fingerprint=b"g" * 16, base=b"g" * 16)
    script.attach("big", "rank", page_bytes=u32s([2 * GRANULE]), base=b"g" * 16)
    member = script.members["big", "scheduler", 0]
    wanted = Intent(EPOCH, 1, [b"g" * 48], u32s([16]), b"", ["r"], u32s([0]))
    out = script.feed(events.Published(member.session, member.member, 1, member.token, wanted))
    grant = next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))
    assert list(grant.statuses) == [GRANTED]
    retired = [c for c in out if isinstance(c, commands.Table) and c.generation and not c.entry.key]
    assert retired, "every slot start of the reused slab got a new generation"


def test_a_silent_session_loses_its_promises_but_not_its_slots_and_may_still_win() -> None:
    script = Script().engine().engine("q")
    grant = script.intent([1])
    script.now += 1.6
    script.publish(("q", "scheduler", 0), Alive(EPOCH, 0, 0))
    script.publish(("q", "rank", 0), Alive(EPOCH, 0, 0))
    assert deltas(script.feed(events.Tick())) == [(key(1), GONE)]
    second = script.intent([1], "q")
    assert list(second.statuses) == [GRANTED] and second.slots != grant.slots
    script.hashed(script.word(grant))
    assert script.sealed() == {1}, "the first sealed wins, whoever it is"
    script.hashed(script.word(second, "q"))
    assert script.tier.counts["duplicates"] == 1
    assert script.tier.dump()["aside"] == 0
    assert script.lookup([1]).full == 1, "the sealed page is still there when the duplicate has gone"


def test_a_grant_that_a_rank_never_saw_is_ended_by_its_alive() -> None:
    script = Script().engine()
    grant = script.intent([1])
    script.publish(("p", "rank", 0), Alive(EPOCH, 0, 0))
    assert script.tier.dump()["grants"] == 1, "it says that it has not seen the event yet"
    script.publish(("p", "rank", 0), Alive(EPOCH, 99, 0, u64s([grant.grant])))
    assert script.tier.dump()["grants"] == 1, "it lists the grant"
    script.publish(("p", "rank", 0), Alive(EPOCH, 99, 0))
    assert script.tier.dump()["pages"] == {}


# --- loading ----------------------------------------------------------------------------------------------------------


def test_hits_are_a_prefix_and_a_tail_needs_all_of_it() -> None:
    script = Script().engine()
    script.save([0, 2, 9])
    answer = script.lookup([0, 1, 2], [9])
    assert (answer.full, answer.tail, answer.reason) == (1, -1, "unknown")
    script.save([1])
    answer = script.lookup([0, 1, 2], [8, 9])
    assert (answer.full, answer.tail, answer.reason) == (3, 1, "")
    assert len(answer.slots) == 4


def test_pending_is_awaited_and_unknown_is_not() -> None:
    script = Script().engine()
    grant = script.intent([0])
    assert script.lookup([0]) is None
    assert script.lookup([7]).reason == "unknown"
    done = script.hashed(script.word(grant))
    assert [answer.full for answer in hits(done)] == [1]


def test_unknown_is_awaited_when_it_is_expected_but_not_for_ever() -> None:
    script = Script().engine()
    assert script.lookup([0], expected=True, wait_ms=1000) is None
    script.now += 1.01
    answers = hits(script.feed(events.Tick()))
    assert [(a.full, a.lease, a.reason) for a in answers] == [(0, 0, "deadline")]
    assert script.tier.dump()["waiters"] == 0


def test_ticks_are_frequent_only_while_somebody_waits_for_one() -> None:
    script = Script().engine()
    tier = script.tier
    script.feed(events.Tick())  # a beat
    assert tier.rest(script.now) == state.IDLE_TICK_S
    assert tier.rest(script.now + state.BEAT_S - 0.05) == pytest.approx(0.05), "never past a beat"
    script.intent([1])  # to be acknowledged before its publisher repeats it
    assert tier.rest(script.now) == 0
    script.feed(events.Tick())
    assert tier.rest(script.now) == state.IDLE_TICK_S
    assert script.lookup([2], expected=True, wait_ms=1000) is None  # its deadline is noticed by a tick
    assert tier.rest(script.now) == 0


def test_an_idle_lease_runs_out_and_a_loading_one_does_not() -> None:
    script = Script().engine()
    script.save([0])
    idle, loading = script.lookup([0]), script.lookup([0])
    script.ask(Loading(script.looked.session, script.looked.token, u64s([loading.lease])))
    script.now += 2.1
    script.feed(events.Tick())
    assert list(script.tier.leases.open) == [loading.lease]
    assert idle.lease not in script.tier.leases.open


def test_a_lease_that_a_beat_does_not_list_is_over() -> None:
    script = Script().engine()
    script.save([0])
    answer = script.lookup([0])
    number = script.looked.lookup
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 0, 0, u64s(), u64s([answer.lease]), u64s(), number))
    assert len(script.tier.leases.open) == 1
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 0, 0, u64s(), u64s(), u64s(), number))
    assert len(script.tier.leases.open) == 0


def test_a_beat_says_nothing_of_lookups_that_were_sent_after_it_nor_of_answers_on_their_way() -> None:
    script = Script().engine()
    script.save([0])
    script.lookup([0])
    answered = script.looked.lookup
    assert script.lookup([7], expected=True) is None
    waiting = script.looked.lookup
    for old in range(3):
        script.publish(("p", "scheduler", 0), Alive(EPOCH, old, 0, u64s(), u64s(), u64s(), answered - 1))
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 9, 0, u64s(), u64s(), u64s([answered]), answered))
    assert (len(script.tier.leases.open), len(script.tier.lookups.open)) == (1, 1)
    script.publish(("p", "scheduler", 0), Alive(EPOCH, 9, 0, u64s(), u64s(), u64s([answered]), waiting))
    assert (len(script.tier.leases.open), len(script.tier.lookups.open)) == (1, 0)


def test_the_death_of_the_scheduler_half_ends_its_lookups_and_leases() -> None:
    script = Script().engine()
    script.save([0])
    script.lookup([0])
    assert script.lookup([5], expected=True) is None
    member = script.members["p", "scheduler", 0]
    out = script.feed(events.Proven(member.session, member.member))
    assert [answer.reason for answer in hits(out)] == ["cancelled"]
    dump = script.tier.dump()
    assert (dump["leases"], dump["lookups"], dump["references"]) == (0, 0, 0)


def test_pages_whose_checksum_cannot_be_taken_are_not_saved_and_leave_nothing() -> None:
    script = Script().engine()
    job = only(commands.Hash, script.word(script.intent([1, 2])))
    out = script.feed(events.Hashed(job.job, None))
    assert [state for _, state in deltas(out)] == [GONE, GONE]
    dump = script.tier.dump()
    assert (dump["pages"], dump["references"], dump["hashing"]) == ({}, 0, 0)
    assert dump["free_bytes"] == dump["backed_bytes"]
    script.save([1, 2])
    assert script.sealed() == {1, 2}


# --- fetching ---------------------------------------------------------------------------------------------------------


def located(ask: commands.Locate, nodes: list[str]) -> events.LocateAnswer:
    """Every key is at every node, in this order."""
    states = bytes([SEALED] * len(ask.keys))
    owners = u32s(list(range(len(nodes))) * len(ask.keys))
    epochs, places = u64s([5] * len(nodes)), [f"tcp://{node}" for node in nodes]
    return events.LocateAnswer(ask.ask, Located(states, len(nodes), owners, nodes, epochs, places))


def test_an_answer_that_ends_with_a_hole_ends_the_lookup_there() -> None:
    script = Script(metaserver=True).engine()
    member = script.members["p", "scheduler", 0]
    keys = [key(n) for n in (1, 2, 3)]
    out = script.feed(events.Asked("asker", Lookup(member.session, member.token, 1, "r", keys, [key(8), key(9)], 1000, False)))
    ask = only(commands.Locate, out)
    assert (list(ask.keys), ask.tails) == ([*keys, key(8), key(9)], 2)
    short = Located(bytes([SEALED, GONE]), 1, u32s([0, NO_OWNER]), ["b"], u64s([5]), ["tcp://b"])
    pin = only(commands.PinAt, script.feed(events.LocateAnswer(ask.ask, short)))
    assert list(pin.keys) == [key(1)]


@pytest.mark.parametrize("states", [b"", bytes([SEALED])])
def test_an_answer_that_ends_without_a_hole_is_a_failed_one(states: bytes) -> None:
    """Or the tier would ask for what is missing again and again."""
    script = Script(metaserver=True).engine()
    member = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(member.session, member.token, 1, "r", [key(1), key(2)], [], 1000, False)))
    ask = only(commands.Locate, out)
    short = Located(states, 1, u32s([0] * len(states)), ["b"], u64s([5]), ["tcp://b"])
    out = script.feed(events.LocateAnswer(ask.ask, short))
    assert not [c for c in out if isinstance(c, commands.Locate | commands.PinAt)]
    assert [answer.reason for answer in hits(out)] == [ErrorCode.BAD_MESSAGE]


def pinned(pin: commands.PinAt, sums: list[bytes]) -> Pinned:
    count = len(pin.keys)
    positions, rows = u32s(range(count)), u32s([16] * count)
    offsets, lengths = u64s([0] * count), u32s([GRANULE] * count)
    agent = f"{pin.endpoint.removeprefix('tcp://')}/{pin.epoch:016x}"
    return Pinned(3, positions, rows, offsets, lengths, b"".join(sums), agent, b"blob", 0, 1 << 20)


def only(kind: type, out: list[commands.Command]) -> Any:
    found = [command for command in out if isinstance(command, kind)]
    assert len(found) == 1, out
    return found[0]


def test_a_page_of_another_node_is_fetched_and_its_bytes_are_believed_only_with_their_checksum() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1), key(2)], [], 1000, False)))
    out = script.feed(located(only(commands.Locate, out), ["b"]))
    pin = only(commands.PinAt, out)
    assert list(pin.keys) == [key(1), key(2)]
    page_slots = [script.tier.pages.index[key(n)].slots[0] for n in (1, 2)]
    sums = [checksum(f"page {page_slots[0]}"), checksum("something else")]
    out = script.feed(events.PinAnswer(pin.fetch, pinned(pin, sums), script.now))
    read = only(commands.Read, out)
    assert list(read.local) == [slot * GRANULE for slot in page_slots]
    out = script.feed(events.ReadEnded(read.fetch, "done"))
    assert only(commands.UnpinAt, out).lease == 3
    done = script.hashed(out)
    assert script.sealed() == {1}
    assert script.tier.counts["bad_checksum"] == 1
    assert [(answer.full, answer.reason) for answer in hits(done)] == [(1, "bad_checksum")]


def test_the_next_owner_is_asked_when_the_first_does_not_deliver() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 5000, False)))
    out = script.feed(located(only(commands.Locate, out), ["b", "c"]))
    first = only(commands.PinAt, out)
    script.now += 2.1
    out = script.feed(events.Tick())
    second = only(commands.PinAt, out)
    assert (first.endpoint, second.endpoint) == ("tcp://b", "tcp://c")


def test_a_read_past_its_deadline_keeps_its_slots_until_it_has_ended() -> None:
    script = Script(pages=16, metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 3000, False)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, pinned(pin, [b"c" * 16]), script.now)))
    slot = read.local[0] // GRANULE
    script.now += 2.1
    out = script.feed(events.Tick())
    assert only(commands.GiveUp, out).fetch == read.fetch
    assert [answer.full for answer in hits(out)] == [0], "who waited is told"
    script.now += 60
    granted = script.intent(list(range(20, 36)))
    assert slot not in granted.slots and list(granted.statuses).count(GRANTED) == 15
    script.feed(events.ReadEnded(read.fetch, "landed_late"))
    assert slot in script.intent([60]).slots


def test_a_read_that_ends_after_its_pin_ran_out_does_not_count() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 9000, False)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    answer = pinned(pin, [checksum(f"page {script.tier.pages.index[key(1)].slots[0]}")])
    read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, answer, script.now - 3.9)))
    script.now += 0.2
    script.feed(events.ReadEnded(read.fetch, "done"))
    assert script.sealed() == set()


def test_a_pin_shows_what_is_there_and_holds_it() -> None:
    script = Script(pages=16).engine()
    script.save([1, 2])
    answer = script.ask(Pin("b", [key(1), key(9), key(2)], 1, 1000))
    assert list(answer.positions) == [0, 2] and answer.metadata == b"blob"
    script.now += 1.9  # the owner adds a margin of one second to the reader's second
    script.feed(events.Tick())
    assert script.tier.dump()["pins"] == 1
    script.now += 0.2
    script.feed(events.Tick())
    assert script.tier.dump()["pins"] == 0


# --- catalogue --------------------------------------------------------------------------------------------------------


def test_a_snapshot_has_the_head_at_which_its_walk_began() -> None:
    script = Script().engine()
    script.save([1, 2])
    head = script.tier.pages.head
    chunk = script.ask(Sync(5, 1, 0))
    assert (chunk.head, chunk.chunks, sorted(chunk.keys)) == (head, 1, [key(1), key(2)])
    assert set(chunk.states) == {SEALED}
    stale = script.ask(Sync(5, 1, 0 + 1))
    assert stale.code == "stale_sync"


# --- faults that were found once --------------------------------------------------------------------------------------


def test_an_expected_lookup_asks_the_metaserver_again_after_an_owner_did_not_deliver() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("asker", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 5000, True)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    out = script.feed(events.PinAnswer(pin.fetch, RemoteError("wrong_epoch", "b has restarted"), script.now))
    assert only(commands.ForgetPeer, out).peer == f"b/{5:016x}"
    again = only(commands.Locate, out)
    assert list(again.keys) == [key(1)]
    assert script.feed(located(again, ["b"])) == [], "the same owner is not asked again"
    script.now += 0.11
    assert list(only(commands.Locate, script.feed(events.Tick())).keys) == [key(1)]


def test_who_waited_for_anothers_fetch_asks_for_itself_when_that_fails() -> None:
    script = Script(metaserver=True).engine()
    attached = script.members["p", "scheduler", 0]
    out = script.feed(events.Asked("first", Lookup(attached.session, attached.token, 1, "r", [key(1)], [], 5000, False)))
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, out), ["b"])))
    second = Lookup(attached.session, attached.token, 2, "r", [key(1)], [], 5000, False)
    assert script.feed(events.Asked("second", second)) == []
    out = script.feed(events.PinAnswer(pin.fetch, RemoteError("unreachable", "b is gone"), script.now))
    assert [answer.lookup for answer in hits(out)] == [1]
    assert list(only(commands.Locate, out).keys) == [key(1)]


def test_another_shape_with_slots_of_the_same_size_gets_its_share() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)), request="old")
    script.now += 60
    other = b"g" * 16
    script.attach("d", fingerprint=other, base=other, page_bytes=u32s([GRANULE - 512]))
    script.attach("d", "rank", base=other, page_bytes=u32s([GRANULE - 512]))
    wanted = Intent(EPOCH, 1, [other + bytes(32)], u32s([16]), b"", ["x"], u32s([0]))
    out = script.publish(("d", "scheduler", 0), wanted)
    assert list(next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant)).statuses) == [
        GRANTED
    ]


def test_an_engine_that_came_back_changed_waits_for_the_proof_of_its_death() -> None:
    script = Script().engine()
    assert script.attach(role="rank", nonce=b"n" * 16, base=b"B" * 16).code == "session_taken"


def test_a_rank_that_attached_first_is_checked_when_its_scheduler_half_comes() -> None:
    script = Script()
    assert isinstance(script.attach(role="rank", page_bytes=u32s([2 * GRANULE])), Attached)
    answer = script.attach()
    assert answer.code == "layout_mismatch"
    assert str(GRANULE) in answer.text and str(2 * GRANULE) in answer.text


def test_everyone_hears_who_is_attached_at_once() -> None:
    script = Script(shards=2)
    script.attach()
    script.attach(role="rank", rank=0)
    session = script.tier.sessions.by_number[script.members["p", "scheduler", 0].session]
    assert not session.complete
    beats: list[int] = []
    member = Attach(
        1, "test", "p", "rank", 1, 1, 2, 0, 1, b"b" * 16, b"", [], b"l" * 16, u32s([GRANULE]), "", 1, "", b"z" * 16, 1
    )
    for command in script.feed(events.Asked("asker", member)):
        if isinstance(command, commands.Publish) and isinstance(command.message, SessionBeat):
            beats.append(len(command.message.members))
    assert beats == [3] and session.complete


# --- space ------------------------------------------------------------------------------------------------------------


def test_a_probe_says_what_is_there_and_neither_refreshes_nor_pins() -> None:
    script = Script(pages=16, metaserver=True).engine()
    script.save([0, 1], request="old")
    script.save(list(range(2, 14)), request="new")
    script.intent([20])
    assert script.lookup([30]) is None
    [locate] = [c for c in script.last if isinstance(c, commands.Locate)]
    there = Located(bytes([SEALED]), 1, u32s([0]), ["b"], u64s([5]), ["tcp://b"])
    script.feed(events.LocateAnswer(locate.ask, there))
    answer = script.ask(Probe([key(n) for n in (0, 1, 20, 30, 99)]))
    assert (list(answer.states), list(answer.levels)) == ([2, 2, 1, 3, 0], [0] * 5)
    script.save([40, 41], request="last")
    assert not {0, 1} & script.sealed(), "the oldest went although they were probed"
    assert script.tier.dump()["references"] == 1, "that of the fetch"


def test_what_an_intent_was_told_of_stays_for_ten_seconds() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)), request="old")
    assert set(script.intent([14, 15], request="again").statuses) == {HAVE}
    script.save(list(range(100, 120)), request="new")
    assert {0, 14, 15} <= script.sealed(), "nor does what they continue go"
    script.now += 10.1
    assert set(script.intent([200, 201], request="last").statuses) == {GRANTED}


def test_a_prefix_is_kept_and_let_go_by_request() -> None:
    script = Script(pages=64).engine()
    script.save(list(range(10)))
    kept = script.ask(Keep([key(9), key(77)], 60_000))
    assert (list(kept.states), kept.kept_bytes) == ([1, 0], 10 * GRANULE)
    for start in range(100, 400, 20):
        script.save(list(range(start, start + 20)), request=f"r{start}")
    assert set(range(10)) <= script.sealed()
    refused = script.ask(Keep([key(n) for n in range(380, 400)], 60_000))
    assert refused.code == "keep_full" and str(16 * GRANULE) in refused.text
    script.ask(Unkeep([key(n) for n in range(10)]))
    script.save(list(range(500, 560)), request="last")
    assert not set(range(10)) & script.sealed()


def test_what_follows_a_key_without_space_gets_none_but_other_requests_may() -> None:
    script = Script(pages=16).engine()
    keys = [key(n) for n in range(20)] + [key(50)]
    owners = u32s([0] * 20 + [1])
    wanted = Intent(EPOCH, next(script.intents), keys, u32s([16] * 21), b"", ["r", "other"], owners)
    out = script.publish(("p", "scheduler", 0), wanted)
    grant = next(c.message for c in out if isinstance(c, commands.Publish) and isinstance(c.message, Grant))
    assert list(grant.statuses) == [GRANTED] * 16 + [NO_SPACE] * 5
    assert script.tier.counts["no_space"] == 5


def test_the_end_of_an_engine_ends_its_share() -> None:
    script = Script(pages=16).engine()
    script.save(list(range(16)))
    view = script.tier.dump()["space"]["namespaces"][FINGERPRINT.hex()]
    assert view["share_bytes"] == view["used_bytes"] == 16 * GRANULE
    for attached in script.members.values():
        script.feed(events.Proven(attached.session, attached.member))
    assert script.tier.dump()["space"]["namespaces"][FINGERPRINT.hex()]["share_bytes"] == 0
