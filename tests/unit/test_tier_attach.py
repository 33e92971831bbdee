"""Who is attached to the pure tier, and who is told."""

from __future__ import annotations

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.attach import Attach, Attached, SessionBeat
from pegaflow.services.tier import commands, events
from tier_script import FINGERPRINT, Script


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
