"""Lookups that wait: what happens meanwhile to what they have found, and to what they have asked."""

from __future__ import annotations

import pytest
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.inspection import Find
from pegaflow.services.tier import commands, events, finds
from pegaflow.services.tier.fetches import Fetches
from tier_script import Script, checksum, hits, key, located, only, pinned

ROTTEN = [b"x" * 16]


def found(out: list[commands.Command]) -> list[tuple[int, str]]:
    return [(hit.full, hit.reason) for hit in hits(out)]


def test_a_page_that_was_found_bad_while_its_lookup_waited_for_another_is_not_leased() -> None:
    script = Script().engine()
    script.save([1, 2])
    grant = script.intent([3])
    assert script.lookup([1, 2, 3], wait_ms=5000) is None
    script.tier.verifier.check([script.tier.pages.index[key(2)]], holds=False)  # as the scrubber does
    script.feed(events.Hashed(max(script.tier.verifier.open), ROTTEN))
    assert found(script.hashed(script.word(grant))) == [(1, ErrorCode.BAD_CHECKSUM)]


def test_a_page_that_two_lookups_verify_is_bad_for_both() -> None:
    script = Script().engine()
    script.save([1])
    script.tier.verifier.retune(1)
    jobs = []
    for _ in range(2):
        assert script.lookup([1]) is None
        jobs.append(max(script.tier.verifier.open))
    for job in jobs:
        assert found(script.feed(events.Hashed(job, ROTTEN))) == [(0, ErrorCode.BAD_CHECKSUM)]


def test_what_is_saved_here_while_the_metaserver_waits_for_it_does_not_hold_up_what_comes_elsewhere() -> None:
    script = Script(metaserver=True).engine()
    script.lookup([0, 1, 2], wait_ms=5000, expected=True)
    first = only(commands.Locate, script.last)
    script.hashed(script.word(script.intent([0])))  # the metaserver does not count the asker's own: a hole at the head
    script.now += 0.2
    again = only(commands.Locate, script.feed(events.Tick()))
    assert list(again.keys) == [key(1), key(2)]
    assert not [c for c in script.feed(located(first, ["b"])) if isinstance(c, commands.PinAt)], "that is not asked any more"
    assert list(only(commands.PinAt, script.feed(located(again, ["b"]))).keys) == [key(1), key(2)]


def test_a_checksum_that_could_not_be_taken_here_speaks_against_nobody() -> None:
    script = Script(metaserver=True).engine()
    script.lookup([1], wait_ms=5000, expected=True)

    def fetched() -> int:
        """Asks and is told of b, until b's page is here; the job of its checksum."""
        for _ in range(20):
            for command in script.last:
                match command:
                    case commands.Locate():
                        script.feed(located(command, ["b"]))
                        break
                    case commands.PinAt():
                        answer = pinned(command, [checksum("page")])
                        read = only(commands.Read, script.feed(events.PinAnswer(command.fetch, answer, script.now)))
                        return int(only(commands.Hash, script.feed(events.ReadEnded(read.fetch, "done"))).job)
            else:
                script.now += 0.1
                script.feed(events.Tick())
        raise AssertionError("b is not asked again")

    script.feed(events.Hashed(fetched(), None))
    assert script.tier.counts["bad_checksum"] == 0
    assert found(script.feed(events.Hashed(fetched(), [checksum("page")]))) == [(1, "")]


def test_one_resume_is_under_way_whoever_has_more_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that fetches and a search, in small slices: each `Resumed` of one would be another one of both."""
    monkeypatch.setattr(finds, "SLICE", 1)
    monkeypatch.setattr(Fetches, "batch", lambda *_: 1)
    script = Script(metaserver=True).engine()
    script.save(list(range(20)))
    resumes = 0

    def feed(event: events.Event) -> list[commands.Command]:
        nonlocal resumes
        out = script.feed(event)
        resumes += sum(isinstance(command, commands.Resume) for command in out)
        assert resumes <= 1
        return out

    script.lookup(list(range(100, 120)), wait_ms=5000, expected=True)
    feed(located(only(commands.Locate, script.last), ["b"]))
    feed(events.Asked("a person", Find(b"nothing")))
    turns = 0
    while resumes:
        resumes, turns = 0, turns + 1
        feed(events.Resumed())
    assert turns >= 19 and not script.tier.lookups.behind and not script.tier._finds.behind
