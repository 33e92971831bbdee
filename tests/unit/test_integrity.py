"""Pages are looked at again: before they are leased, as `verify_on_load` says, and by the scrubber."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.catalogue import GONE
from pegaflow.common.wire.messages.loads import Lookup
from pegaflow.common.wire.messages.saves import GRANTED
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.scrubber import PAUSE_S
from pegaflow.services.tier.state import TierState
from pegaflow.services.tier.verifier import OnLoad
from tier_script import EPOCH, Script, checksum, deltas, hits, key


class Careful(Script):
    """A tier with options about integrity; pages 0, 1, … lie in slots whose bytes `rot` may change."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        place, numbers = Place("a", EPOCH, "pool", 64 * GRANULE, "table", "i", "e", "c"), itertools.count(1)
        self.tier = TierState(place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, **options)
        self.tier.agent = Agent("a/77", b"blob", 4096)
        self.feed(events.Backed(64))
        self.rotten: set[int] = set()
        self.read = 0
        self.engine()

    def rot(self, number: int) -> None:
        self.rotten.add(self.tier.pages.index[key(number)].slots[0])

    def jobs(self, out: list[commands.Command]) -> list[commands.Command]:
        """Takes the checksums that are asked for; returns what comes of it."""
        done: list[commands.Command] = []
        for job in [command for command in out if isinstance(command, commands.Hash)]:
            self.read += sum(job.lengths)
            found = [checksum("rot" if slot in self.rotten else f"page {slot}") for slot in job.slots]
            done += self.feed(events.Hashed(job.job, found))
        return done

    def load(self, numbers: list[int], tails: list[int] | None = None) -> list[commands.Command]:
        """A lookup; it is answered at once, or its checksums are asked for."""
        attached = self.members["p", "scheduler", 0]
        keys, ends = [key(n) for n in numbers], [key(n) for n in tails or []]
        ask = Lookup(attached.session, attached.token, next(self.intents), "r", keys, ends, 1000, False)
        return self.feed(events.Asked("asker", ask))


def test_what_is_verified_before_each_load_is_never_leased_with_other_bytes() -> None:
    tier = Careful(verify_every=1)
    tier.save([0, 1, 2, 3])
    tier.rot(2)
    out = tier.load([0, 1, 2, 3])
    assert hits(out) == []
    out = tier.jobs(out)
    answer = hits(out)[-1]
    assert (answer.full, answer.reason) == (2, "bad_checksum")
    assert deltas(out) == [(key(2), GONE)]
    assert tier.tier.counts["verified_bad"] == 1
    assert list(tier.intent([2]).statuses) == [GRANTED], "it may be saved again, from another copy"


def test_a_bad_tail_costs_the_tail_only() -> None:
    tier = Careful(verify_every=1)
    tier.save([0, 1, 9])
    tier.rot(9)
    answer = hits(tier.jobs(tier.load([0, 1], [9])))[-1]
    assert (answer.full, answer.tail) == (2, -1)


def test_a_sample_is_one_page_in_so_many_over_all_loads() -> None:
    tier = Careful(verify_every=4)
    tier.save([0, 1, 2])
    tier.read = 0
    for _ in range(8):
        out = tier.load([0, 1, 2])
        assert len(hits(out) + hits(tier.jobs(out))) == 1
    assert tier.read == 8 * 3 // 4 * GRANULE


def test_without_verification_a_load_waits_for_no_checksum() -> None:
    tier = Careful()
    tier.save([0])
    assert [hit.full for hit in hits(tier.load([0]))] == [1] and not tier.tier.verifier.open


def test_a_lookup_that_is_cancelled_while_its_pages_are_verified_leaves_nothing() -> None:
    tier = Careful(verify_every=1)
    tier.save([0, 1])
    out = tier.load([0, 1])
    tier.feed(events.Proven(tier.members["p", "scheduler", 0].session, tier.members["p", "scheduler", 0].member))
    assert hits(tier.jobs(out)) == []
    assert tier.tier.dump()["references"] == 0 and tier.tier.dump()["lookups"] == 0


def test_the_scrubber_reads_no_more_than_its_rate_and_finds_what_went_bad() -> None:
    rate = 8 * GRANULE
    tier = Careful(scrub_rate=rate)
    tier.save(list(range(20)))
    tier.read = 0
    tier.rot(13)
    gone: list[tuple[bytes, int]] = []
    seconds = 0.0
    tier.feed(events.Tick())
    while not gone and seconds < 60:
        seconds += 0.1
        tier.now += 0.1
        gone = deltas(tier.jobs(tier.feed(events.Tick())))
        assert tier.read <= rate * (seconds + PAUSE_S)
    assert gone == [(key(13), GONE)]
    assert seconds < 2 * 20 / 8, "one round takes as long as the rate says"


def test_the_scrubber_starts_nothing_while_a_batch_is_open_and_nothing_at_rate_0() -> None:
    tier = Careful(scrub_rate=GRANULE)
    idle = Careful()
    for one in (tier, idle):
        one.save([0, 1, 2])
        for _ in range(50):
            one.now += 1
            one.feed(events.Tick())
    assert len(tier.tier.verifier.open) == 1 and not idle.tier.verifier.open
    assert tier.tier.dump()["references"] == 0


def test_a_scrub_of_everything_that_is_here_is_in_nobodys_way() -> None:
    tier = Careful(scrub_rate=1 << 30)
    for number in range(64):
        tier.save([number], request=f"r{number}")
    tier.feed(events.Tick())
    tier.now += PAUSE_S
    (job,) = [one for one in tier.feed(events.Tick()) if isinstance(one, commands.Hash)]
    assert len(job.slots) == 64, "the whole pool"
    bad = tier.tier.pages.index[key(40)].slots[0]
    grant = tier.intent(list(range(100, 110)), request="other")
    assert set(grant.statuses) == {GRANTED} and tier.sealed() == set(range(10, 64))
    found = [checksum("rot" if slot in (bad, job.slots[3]) else f"page {slot}") for slot in job.slots]
    assert deltas(tier.feed(events.Hashed(job.job, found))) == [(key(40), GONE)], "what has left meanwhile is judged no more"
    tier.hashed(tier.word(grant))
    assert set(range(100, 110)) <= tier.sealed() and tier.tier.dump()["references"] == 0


@pytest.mark.parametrize(("how", "every"), [(OnLoad.ALWAYS, 1), (OnLoad.SAMPLE, 7), (OnLoad.NEVER, 0)])
def test_the_option_says_how_often(how: OnLoad, every: int) -> None:
    assert TierConfig(verify_on_load=how, verify_sample=7).verify_every == every
