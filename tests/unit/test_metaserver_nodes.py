"""Nodes: hello, clones, silence, death, other lives, bye."""

from __future__ import annotations

import pytest
from metaserver_script import A1, A2, B1, K, Script, failures, located, owners, published
from pegaflow.common.bus.sync_gate import SYNCS_AT_ONCE
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.common.wire.messages.catalogue import (
    GONE,
    PENDING,
    SEALED,
    Beat,
    Bye,
    HelloAck,
    NodeDown,
    NodeList,
    Nodes,
    NodeUp,
    SyncChunk,
)
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Drain
from pegaflow.services.metaserver.commands import AskChunk, Connect, Disconnect, Reply
from pegaflow.services.metaserver.events import Asked, ChunkAnswer, ConnectFailed, Heard, Tick, Work


def test_hello_connects_once_and_says_when_the_clone_is_whole() -> None:
    script = Script()
    out = script.hello("a", A1)
    assert Connect("a", "tcp://a:1", "tcp://a:11") in out
    assert Reply("h", HelloAck(False)) in out
    out = script.up("a", A1)
    assert published(out) == [NodeUp("a", A1, "tcp://a:1")]
    assert script.hello("a", A1) == [Reply("h", HelloAck(True))]


def test_a_node_that_left_is_swept_out_in_slices() -> None:
    script = Script()
    keys = [b"%06d" % n for n in range(3000)]
    script.up("a", A1, dict.fromkeys(keys, SEALED))
    script.up("b", B1, dict.fromkeys(keys[::2], SEALED))
    script.feed(Asked("b", Bye("a", A1)))
    assert owners(script.locate(keys[:2], holes=True)) == [["b"], []], "at once, before anything is swept"
    assert len(script.state.index) == 3000
    steps = 0
    while script.state.busy:
        script.feed(Work())
        steps += 1
    assert steps > 1 and len(script.state.index) == 1500
    assert owners(script.locate(keys[:2], holes=True)) == [["b"], []]


def test_any_event_is_a_sign_of_life() -> None:
    script = Script()
    script.up("a", A1)
    for _ in range(5):
        script.feed(Tick(), 0.7)
        script.delta("a", A1, k0=SEALED)
    assert "a" in script.state.nodes.by_name


def test_an_old_lifes_event_is_no_sign_of_life() -> None:
    script = Script()
    script.up("a", A1)
    script.hello("a", A2)
    for _ in range(4):
        script.feed(Tick(), 0.65)
        script.feed(Heard("a", A1, 7, Welcome()))
    script.feed(Tick())
    assert not script.state.nodes.by_name


def test_own_pause_is_not_taken_for_everybody_elses_death() -> None:
    script = Script()
    script.up("a", A1)
    assert not any(isinstance(c, Disconnect) for c in script.feed(Tick(), 30.0))
    for _ in range(3):
        script.feed(Tick(), 0.9)
    assert not script.state.nodes.by_name, "but silence afterwards is"


def test_a_silent_life_may_come_back() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    for _ in range(3):
        script.feed(Tick(), 0.9)
    assert Connect("a", "tcp://a:1", "tcp://a:11") in script.hello("a", A1)
    assert NodeUp("a", A1, "tcp://a:1") in published(script.up("a", A1))


def test_a_silent_life_that_was_replaced_may_not_come_back() -> None:
    script = Script()
    script.up("a", A1)
    for _ in range(3):
        script.feed(Tick(), 0.9)
    script.hello("a", A2)
    assert failures(script.hello("a", A1)) == [ErrorCode.WRONG_EPOCH]


def test_a_new_life_at_the_same_endpoint_replaces_the_old_one_at_once() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    out = script.hello("a", A2)
    assert published(out) == [NodeDown("a", A1, "replaced")]
    assert Connect("a", "tcp://a:1", "tcp://a:11") in out
    assert list(located(script.locate(K[:1])).states) == [GONE]
    assert failures(script.hello("a", A1)) == [ErrorCode.WRONG_EPOCH]
    assert failures(script.hello("a", A2)) == []


def test_a_connection_that_could_not_be_made_is_tried_again_with_the_next_hello() -> None:
    script = Script()
    connect = Connect("a", "tcp://a:1", "tcp://a:11")
    assert connect in script.hello("a", A1)
    assert connect not in script.hello("a", A1)
    script.feed(ConnectFailed("a"))
    script.feed(ConnectFailed("nobody"))
    assert connect in script.hello("a", A1)
    assert connect not in script.hello("a", A1)


def test_a_new_life_seen_in_the_events_first() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    out = script.feed(Heard("a", A2, 0, Welcome()))
    assert published(out) == [NodeDown("a", A1, "replaced")]
    assert [c.epoch for c in out if isinstance(c, AskChunk)] == [A2]
    assert not any(isinstance(c, Connect) for c in script.hello("a", A2)), "the connection reached the new life already"


def test_a_second_endpoint_under_a_living_name_is_refused() -> None:
    script = Script()
    script.up("a", A1)
    assert failures(script.hello("a", A2, "tcp://other:1")) == [ErrorCode.DUPLICATE_NODE]
    for _ in range(3):
        script.feed(Tick(), 0.9)
    assert failures(script.hello("a", A2, "tcp://other:1")) == []


def test_bye_takes_the_entries_at_once_and_for_good() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    assert not published(script.feed(Asked("b", Bye("a", A2)))), "of another life"
    out = script.feed(Asked("b", Bye("a", A1)))
    assert published(out) == [NodeDown("a", A1, "bye")] and Reply("b", Done()) in out
    assert failures(script.hello("a", A1)) == [ErrorCode.WRONG_EPOCH]
    assert Reply("b", Done()) in script.feed(Asked("b", Bye("a", A1)))


@pytest.mark.parametrize(("node", "epoch"), [("", A1), ("x" * 65, A1), ("a", 0)])
def test_a_hello_without_name_or_epoch_is_refused(node: str, epoch: int) -> None:
    script = Script()
    assert failures(script.hello(node, epoch)) == [ErrorCode.BAD_MESSAGE]
    assert not script.state.nodes.by_name


def test_node_list() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: PENDING})
    script.hello("b", B1)
    [reply] = script.feed(Asked("n", Nodes()))
    assert isinstance(reply, Reply) and isinstance(reply.message, NodeList)
    listed = reply.message
    assert listed.check() is None
    assert list(zip(listed.nodes, listed.epochs, listed.states, listed.sealed, listed.pending, strict=True)) == [
        ("a", A1, "up", 1, 1),
        ("b", B1, "syncing", 0, 0),
    ]
    script.hello("a", A1, draining=True)
    [reply] = script.feed(Asked("n", Nodes()))
    assert isinstance(reply, Reply) and isinstance(reply.message, NodeList)
    assert reply.message.states == ["draining", "syncing"]


def test_beats_come_each_heartbeat() -> None:
    script = Script()
    beats = sum(isinstance(m, Beat) for _ in range(30) for m in published(script.feed(Tick(), 0.1)))
    assert 5 <= beats <= 6


def test_a_failed_chunk_is_asked_for_again() -> None:
    script = Script()
    script.hello("a", A1)
    [ask] = [c for c in script.feed(Heard("a", A1, 0, Welcome())) if isinstance(c, AskChunk)]
    out = script.feed(ChunkAnswer("a", ask.sync.sync_id, RemoteError(ErrorCode.STALE_SYNC, "x")))
    assert not any(isinstance(c, AskChunk) for c in out)
    [again] = [c for c in script.feed(Tick(), 0.5) if isinstance(c, AskChunk)]
    assert again.sync.sync_id != ask.sync.sync_id and again.sync.chunk == 0
    assert script.state.counts["sync_refused"] == 1


def test_snapshots_of_many_tiers_are_taken_few_at_a_time() -> None:
    script = Script()
    asked: list[AskChunk] = []
    names = [f"n{n}" for n in range(10)]
    for n, name in enumerate(names):
        script.hello(name, n + 1)
        asked += [c for c in script.feed(Heard(name, n + 1, 0, Welcome())) if isinstance(c, AskChunk)]
    assert [ask.node for ask in asked] == names[:SYNCS_AT_ONCE]
    script.feed(Asked("b", Bye(names[SYNCS_AT_ONCE + 1], SYNCS_AT_ONCE + 2)))  # it leaves while it waits
    out = script.feed(Asked("b", Bye(asked.pop(0).node, 1)))  # it leaves while it is asked
    asked += [c for c in out if isinstance(c, AskChunk)]
    up: list[str] = []
    while asked:
        ask = asked.pop(0)
        sync = ask.sync
        chunk = SyncChunk(sync.clone_epoch, sync.sync_id, 0, 1, 0, [], b"", b"", u32s())
        out = script.feed(ChunkAnswer(ask.node, sync.sync_id, chunk))
        asked += [c for c in out if isinstance(c, AskChunk)]
        up += [message.node for message in published(out)]
        assert len(asked) <= SYNCS_AT_ONCE
    assert up == [name for n, name in enumerate(names) if n not in (0, SYNCS_AT_ONCE + 1)]


def test_what_a_metaserver_does_not_answer() -> None:
    assert failures(Script().feed(Asked("x", Drain()))) == [ErrorCode.UNSUPPORTED]


def test_dump_counts_what_is_held() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.locate(K[1:2], expected=True)
    dump = script.state.dump(script.now)
    assert dump["keys"] == {"sealed": 1, "pending": 0} and dump["waiters"] == 1
    assert dump["nodes"][0]["node"] == "a" and dump["nodes"][0]["state"] == "up"
