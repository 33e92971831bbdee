"""What the pure tier answers to whoever looks: pages, stories, lookups, leases, grants, namespaces."""

from __future__ import annotations

from typing import Any

from disk_script import DiskScript
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.inspection import (
    NEVER,
    Digest,
    Find,
    Grants,
    Inspect,
    Inspected,
    Leases,
    Namespaces,
    PageFlag,
    PageIs,
    Recall,
    Recalled,
    Step,
    Story,
    Told,
)
from pegaflow.common.wire.messages.saves import Abandoned, Intent
from pegaflow.common.wire.messages.space import Keep
from pegaflow.services.tier import commands, events
from pegaflow.services.tier.eviction.shares import SpaceOptions
from tier_script import EPOCH, FINGERPRINT, Script, checksum, key, located, only, pinned


def story(script: Script, number: int) -> list[tuple[Step, str]]:
    told = script.ask(Story(key(number)))
    assert isinstance(told, Told)
    assert list(told.ages_ms) == sorted(told.ages_ms, reverse=True) and max(told.ages_ms, default=0) <= told.reaches_ms
    return list(zip(map(Step, told.steps), told.whos, strict=True))


def inspect(script: Script, *numbers: int) -> Inspected:
    found = script.ask(Inspect([key(n) for n in numbers]))
    assert isinstance(found, Inspected) and found.check() is None
    return found


def recall(script: Script, request: str = "") -> Recalled:
    found = script.ask(Recall(request))
    assert isinstance(found, Recalled) and found.check() is None
    return found


def test_a_page_from_its_intent_to_its_end() -> None:
    script = Script(pages=16).engine()
    script.save([1, 2], request="first")
    script.now += 5
    script.save(list(range(100, 116)), request="hungry")
    assert story(script, 1) == [(Step.GRANTED, "p first"), (Step.SEALED, ""), (Step.EVICTED, "room: for p hungry")]
    told = script.ask(Story(key(1)))
    assert [round(age / 1000) for age in told.ages_ms] == [5, 5, 0]


def test_a_save_that_came_to_nothing_says_why() -> None:
    script = Script(shards=2).engine()
    grant = script.intent([1], request="r1")
    script.word(grant, rank=0, kind=Abandoned)
    assert story(script, 1) == [(Step.GRANTED, "p r1"), (Step.ABANDONED, "p by its rank")]
    script.word(grant, rank=1)
    script.intent([2], request="r2")
    rank = script.members["p", "rank", 1]
    script.feed(events.Proven(rank.session, rank.member))
    assert story(script, 2)[-1] == (Step.ABANDONED, "p its process died")
    script.intent([3], request="r3")
    assert story(script, 3) == [(Step.REFUSED, "p r3")], "not all ranks are there"


def test_what_did_not_fit_and_what_could_not_be_checksummed() -> None:
    script = Script(pages=16).engine()
    script.intent(list(range(20)), request="big")
    assert story(script, 19) == [(Step.NO_SPACE, "p big")] and story(script, 3) == [(Step.GRANTED, "p big")]
    other = Script().engine()
    hash_ = only(commands.Hash, other.word(other.intent([1])))
    other.feed(events.Hashed(hash_.job, None))
    assert story(other, 1)[-1] == (Step.HASH_FAILED, "")


def test_each_page_of_a_step_is_told_with_its_own_request() -> None:
    script = Script(pages=16).engine()
    script.save([1], request="before")
    keys = [key(n) for n in (1, 2, 3, 4)]
    intent = Intent(EPOCH, 50, keys, u32s([16] * 4), b"", ["a", "b"], u32s([0, 1, 0, 1]))
    script.publish(("p", "scheduler", 0), intent)
    assert [story(script, n)[-1] for n in (2, 3, 4)] == [(Step.GRANTED, f"p {request}") for request in ("b", "a", "b")]
    assert story(script, 1) == [(Step.GRANTED, "p before"), (Step.SEALED, "")], "to have it already is no step"


def test_a_draining_tier_refuses_with_its_reason() -> None:
    script = Script().engine()
    script.tier.saves.closed = True
    script.intent([1], request="r")
    assert story(script, 1) == [(Step.REFUSED, "p r the tier drains")]


def test_a_silent_engine_s_promise() -> None:
    script = Script().engine()
    script.intent([1], request="r")
    script.now += 2.0
    script.feed(events.Tick())
    assert story(script, 1)[-1] == (Step.STALE, "p")
    found = inspect(script, 1)
    assert found.states[0] == PageIs.STALE
    grants = script.ask(Grants())
    assert (list(grants.ages_ms), list(grants.silent_ms), list(grants.pages), grants.total) == ([2000], [2000], [1], 1)
    assert (grants.engines, grants.requests, grants.holders) == (["p"], ["r"], ["rank 0 (process 1)"])


def test_a_fetch_names_its_owner_and_its_failure() -> None:
    script = Script(metaserver=True).engine()
    assert script.lookup([1, 2]) is None
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, script.last), ["b"])))
    waiting = recall(script)
    assert (waiting.reasons, list(waiting.asked), list(waiting.hits)) == (["waiting"], [2], [0])
    sums = [checksum(f"page {script.tier.pages.index[key(1)].slots[0]}"), checksum("other bytes")]
    read = only(commands.Read, script.feed(events.PinAnswer(pin.fetch, pinned(pin, sums), script.now)))
    script.hashed(script.feed(events.ReadEnded(read.fetch, "done")))
    assert story(script, 1) == [(Step.FETCHED, "b")]
    assert story(script, 2) == [(Step.FETCH_FAILED, "b bad_checksum")]
    assert PageFlag(inspect(script, 1).flags[0]) == PageFlag.MEMORY | PageFlag.VERIFIED | PageFlag.REPLICA
    done = recall(script)
    assert (done.reasons, list(done.hits), list(done.fetched), done.missing) == (["bad_checksum"], [1], [1], [key(2).hex()])
    assert script.lookup([9]) is None
    pin = only(commands.PinAt, script.feed(located(only(commands.Locate, script.last), ["c"])))
    script.feed(events.PinAnswer(pin.fetch, RemoteError(ErrorCode.UNREACHABLE, "gone"), script.now))
    assert story(script, 9) == [(Step.FETCH_FAILED, "c unreachable")]


def test_out_to_disk_and_back() -> None:
    script = DiskScript()
    script.fill(range(20))
    number = min(script.on_disk())
    steps = [Step.GRANTED, Step.SEALED, Step.DISK_WRITTEN, Step.EVICTED]
    assert [step for step, _ in story(script, number)] == steps
    assert story(script, number)[-1][1] == "watermark"
    found = inspect(script, number)
    assert (found.states[0], found.flags[0], found.sizes[0], found.shards[0]) == (PageIs.SEALED, PageFlag.DISK, GRANULE, 1)
    assert len(found.checksums) == 16 and found.used_ms[0] == NEVER
    assert script.lookup([number]) is None
    read = script.pending.pop()
    script.feed(events.DiskReadEnded(read.job, [record.checksums for record in read.records]))
    assert [step for step, _ in story(script, number)] == [*steps, Step.DISK_READ]
    assert inspect(script, number).flags[0] == PageFlag.MEMORY | PageFlag.DISK | PageFlag.VERIFIED
    bad = sorted(script.on_disk())[1]
    script.lookup([bad])
    read = script.pending.pop()
    script.feed(events.DiskReadEnded(read.job, ["io_error"] * len(read.records)))
    assert story(script, bad)[-1] == (Step.DISK_LOST, "io_error")


def test_a_quota_is_named() -> None:
    script = Script(pages=64).engine()
    script.tier.pages.space._options = SpaceOptions()
    script.tier.pages.space.shares._options = SpaceOptions(quotas={FINGERPRINT: 16 * GRANULE})
    script.save(list(range(16)), request="old")
    script.save([100], request="new")
    gone = (set(range(16)) - script.sealed()).pop()
    assert story(script, gone)[-1] == (Step.EVICTED, "quota: for p new")


def test_what_is_held_and_for_how_long() -> None:
    script = Script().engine()
    script.feed(events.Tick())
    script.save([1, 2], request="r")
    script.now += 0.5
    script.feed(events.Tick())
    script.now += 2.5
    answer = script.lookup([1])
    script.ask(Keep([key(2)], 60_000))
    found = inspect(script, 1, 2, 3)
    assert list(found.states) == [PageIs.SEALED, PageIs.SEALED, PageIs.UNKNOWN]
    assert (list(found.holds), list(found.leases), list(found.pins)) == ([1, 0, 0], [1, 0, 0], [0, 0, 0])
    assert list(found.used_ms) == [0, 2500, NEVER] and list(found.kept_ms)[1] == 60_000
    assert (found.engines, found.requests) == (["p", "p", ""], ["r", "r", ""])
    assert PageFlag.KEPT in PageFlag(found.flags[1]) and found.flags[2] == 0
    script.now += 1
    leases = script.ask(Leases())
    assert (list(leases.leases), leases.engines, leases.requests, leases.readers) == ([answer.lease], ["p"], ["r"], [""])
    assert (list(leases.pages), list(leases.ages_ms), list(leases.left_ms), leases.total) == ([1], [1000], [1000], 1)


def test_to_look_changes_nothing() -> None:
    script = Script(pages=16).engine()
    script.save([0, 1], request="old")
    script.save(list(range(2, 14)), request="new")
    script.ask(Story(key(0)))
    before = script.tier.dump()
    for message in (Inspect([key(0), key(1)]), Story(key(0)), Find(key(0)[:18]), Recall(""), Leases(), Grants(), Namespaces()):
        assert script.ask(message) is not None
    assert script.tier.dump() == before
    script.save([40, 41, 42, 43], request="last")
    assert not {0, 1} & script.sealed(), "the oldest went although somebody looked"


def test_keys_by_their_first_bytes() -> None:
    script = Script().engine()
    script.save([1, 2, 0x01020304])
    found = script.ask(Find(key(0x01020304)[16:18]))
    assert (found.keys, found.more) == ([key(0x01020304).hex()], False)
    assert sorted(script.ask(Find(FINGERPRINT[:3])).keys) == sorted(key(n).hex() for n in (1, 2, 0x01020304))
    assert script.ask(Find(b"zz")).keys == []
    script.save(list(range(100, 150)))
    script.save(list(range(200, 210)))
    many = script.ask(Find(b""))
    assert len(many.keys) == 63 and not many.more


def test_the_last_lookups() -> None:
    script = Script().engine()
    script.save([1, 2, 3])
    script.lookup([1, 2, 3], [4])
    script.lookup([1, 9, 3])
    script.now += 2
    found: Any = recall(script, "r")
    assert (list(found.hits), list(found.asked), list(found.tails)) == ([1, 3], [3, 3], [0, 1])
    assert found.missing == [key(9).hex(), key(4).hex()] and set(found.reasons) == {"unknown"}
    assert (set(found.engines), set(found.fingerprints), set(found.ages_ms)) == ({"p"}, {FINGERPRINT.hex()}, {2000})
    assert recall(script, "other").requests == []


def test_fingerprints_outlive_their_engines() -> None:
    script = Script().engine()
    script.save([1])
    (row,) = script.ask(Namespaces()).factors
    assert row == "model=tiny"
    for member in list(script.members.values()):
        script.feed(events.Proven(member.session, member.member))
    found = script.ask(Namespaces())
    assert (found.fingerprints, found.engines, found.factors) == ([FINGERPRINT.hex()], [""], ["model=tiny"])
    assert (list(found.pages), list(found.used_bytes), list(found.disk)) == ([1], [GRANULE], [0])


def test_the_digest_is_that_of_the_beat() -> None:
    script = Script().engine()
    script.save([1, 2])
    found = script.ask(Digest())
    beat = script.tier.pages.beat()
    assert (found.digests, list(found.sealed), list(found.seqs)) == (beat.digest, [2], [script.tier.pages.announced.head])
    assert (found.nodes, list(found.epochs), found.syncing) == (["a"], [77], b"\0")
