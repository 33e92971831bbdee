"""Space at the pure tier: probe, keep, shares."""

from __future__ import annotations

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.messages.catalogue import SEALED, Located
from pegaflow.common.wire.messages.saves import GRANTED, HAVE, NO_SPACE, Grant, Intent
from pegaflow.common.wire.messages.space import Keep, Probe, Unkeep
from pegaflow.services.tier import commands, events
from tier_script import EPOCH, FINGERPRINT, Script, key


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
