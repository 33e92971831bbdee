"""What a locate waits for, and what ends the wait."""

from __future__ import annotations

from metaserver_script import A1, B1, K, Script, failures, located, owners, published
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.catalogue import (
    GONE,
    PENDING,
    SEALED,
    Locate,
    NodeDown,
)
from pegaflow.services.metaserver.commands import Disconnect, Reply
from pegaflow.services.metaserver.events import Asked, Tick
from pegaflow.services.metaserver.waiters import MAX_WAITERS


def test_a_seal_behind_the_hole_does_not_end_an_expected_wait() -> None:
    script = Script()
    script.up("a", A1)
    assert script.locate(K[:3], expected=True) == []
    assert script.delta("a", A1, k2=SEALED) == []
    assert list(located(script.delta("a", A1, k0=SEALED)).states) == [SEALED, GONE]


def test_the_wait_moves_on_with_the_prefix() -> None:
    """What was a hole is promised now; the key behind it, which was of no interest, can end the wait."""
    script = Script()
    script.up("a", A1)
    assert script.locate(K[:2], expected=True) == []
    assert script.delta("a", A1, k0=PENDING) == []
    assert list(located(script.delta("a", A1, k1=SEALED)).states) == [PENDING, SEALED]


def test_pending_is_awaited_and_answered_by_the_seal() -> None:
    script = Script()
    script.up("a", A1, {K[0]: PENDING})
    assert script.locate(K[:2]) == []
    assert script.delta("a", A1, k1=PENDING) == []
    assert owners(script.delta("a", A1, k1=SEALED)) == [[], ["a"]]
    assert not len(script.state.waiters)


def test_expected_is_awaited_though_unknown() -> None:
    script = Script()
    assert script.locate(K[:1], expected=True) == []
    out = script.up("a", A1, {K[0]: SEALED})
    assert owners(out) == [["a"]], "the swap answers it"


def test_a_seal_on_the_askers_node_does_not_answer() -> None:
    script = Script()
    script.up("a", A1)
    assert script.locate(K[:1], expected=True, asker="a") == []
    assert script.delta("a", A1, k0=SEALED) == []
    script.up("b", B1)
    assert owners(script.delta("b", B1, k0=SEALED)) == [["b"]]


def test_gone_ends_a_wait_with_nothing_left_to_wait_for() -> None:
    script = Script()
    script.up("a", A1, {K[0]: PENDING, K[1]: PENDING})
    assert script.locate(K[:2]) == []
    assert script.locate(K[:2], expected=True) == []
    assert script.delta("a", A1, k1=GONE) == [], "one is still promised"
    assert list(located(script.delta("a", A1, k0=GONE)).states) == [GONE]
    assert len(script.state.waiters) == 1, "the expected one waits on"


def test_the_wait_ends_on_time() -> None:
    script = Script()
    script.locate(K[:1], wait_ms=700, expected=True)
    assert script.state.next_due() == script.now + 0.7
    assert not [c for c in script.feed(Tick(), 0.69) if isinstance(c, Reply)]
    assert list(located(script.feed(Tick(), 0.02)).states) == [GONE]
    assert script.state.next_due() is None


def test_without_a_wait_nothing_waits() -> None:
    script = Script()
    script.up("a", A1, {K[0]: PENDING})
    assert list(located(script.locate(K[:1], wait_ms=0, expected=True)).states) == [PENDING]


def test_death_ends_waits_and_is_published() -> None:
    script = Script()
    script.up("a", A1, {K[0]: PENDING})
    script.locate(K[:1], wait_ms=60_000)
    for _ in range(4):
        assert not published(script.feed(Tick(), 0.6))[:-1]
    out = script.feed(Tick(), 0.2)
    assert Disconnect("a") in out and NodeDown("a", A1, "dead") in published(out)
    assert list(located(out).states) == [GONE]
    assert not script.state.nodes.by_name


def test_too_many_waiters_are_told_so() -> None:
    script = Script()
    for _ in range(MAX_WAITERS):
        script.state.handle(Asked("l", Locate("me", K[:1], 1000, True)), script.now)
    assert failures(script.locate(K[:1], expected=True)) == [ErrorCode.BUSY]
