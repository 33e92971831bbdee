"""The metaserver, as scripts: hellos, catalogues and locates in, replies and node events out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pegaflow.common.bus.sync_gate import SYNCS_AT_ONCE
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.common.wire.messages.catalogue import (
    DISK,
    GONE,
    MEMORY,
    NO_OWNER,
    PENDING,
    SEALED,
    Beat,
    Bye,
    Delta,
    Hello,
    HelloAck,
    Locate,
    Located,
    NodeDown,
    NodeList,
    Nodes,
    NodeUp,
    SyncChunk,
)
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Drain
from pegaflow.services.metaserver.commands import AskChunk, Command, Connect, Disconnect, Fail, Publish, Reply
from pegaflow.services.metaserver.events import Asked, ChunkAnswer, Event, Heard, Tick, Work
from pegaflow.services.metaserver.state import MetaserverState
from pegaflow.services.metaserver.waiters import MAX_WAITERS

A1, A2, B1 = 0xA1, 0xA2, 0xB1
K = [b"key-%d" % n for n in range(8)]


class Script:
    """Feeds the state, keeps what came out, and plays the tiers' part of a snapshot."""

    def __init__(self) -> None:
        self.state = MetaserverState(99, lambda: 0.2)
        self.now = 100.0
        self.seqs: dict[int, int] = {}

    def feed(self, event: Event, after: float = 0.0) -> list[Command]:
        self.now += after
        out = self.state.handle(event, self.now)
        self.state.validate()
        return out

    def hello(
        self,
        node: str,
        epoch: int,
        endpoint: str = "",
        after: float = 0.0,
        *,
        draining: bool = False,
        reads: int = 0,
        leased: int = 0,
    ) -> list[Command]:
        at = endpoint or f"tcp://{node}:1"
        return self.feed(Asked("h", Hello(node, epoch, at, at + "1", at + "2", "1.0", draining, reads, leased)), after)

    def up(self, node: str, epoch: int, held: dict[bytes, int] | None = None, level: int = MEMORY) -> list[Command]:
        """Hello, welcome and a snapshot of one chunk."""
        self.hello(node, epoch)
        [ask] = [c for c in self.feed(Heard(node, epoch, 0, Welcome())) if isinstance(c, AskChunk)]
        rows = held or {}
        keys, states = list(rows), bytes(rows.values())
        sync = ask.sync
        levels, sizes = bytes([level]) * len(keys), u32s([64] * len(keys))
        chunk = SyncChunk(sync.clone_epoch, sync.sync_id, 0, 1, 0, keys, states, levels, sizes)
        return self.feed(ChunkAnswer(node, sync.sync_id, chunk))

    def delta(self, node: str, epoch: int, **changes: int) -> list[Command]:
        keys = [K[int(name[1:])] for name in changes]
        self.seqs[epoch] = self.seqs.get(epoch, 0) + 1
        delta = Delta(keys, bytes(changes.values()), bytes(len(keys)), u32s([64] * len(keys)))
        return self.feed(Heard(node, epoch, self.seqs[epoch], delta))

    def locate(
        self,
        keys: Sequence[bytes],
        *,
        wait_ms: int = 1000,
        expected: bool = False,
        asker: str = "me",
        tails: int = 0,
        holes: bool = False,
    ) -> list[Command]:
        return self.feed(Asked("l", Locate(asker, keys, wait_ms, expected, tails, holes)))


def located(out: list[Command]) -> Located:
    [message] = [c.message for c in out if isinstance(c, Reply) and isinstance(c.message, Located)]
    assert message.check() is None
    return message


def owners(out: list[Command]) -> list[list[str]]:
    answer = located(out)
    rows = [answer.owners[i * answer.width : (i + 1) * answer.width] for i in range(len(answer.states))]
    return [[answer.nodes[owner] for owner in row if owner != NO_OWNER] for row in rows]


def published(out: list[Command]) -> list[Any]:
    return [c.message for c in out if isinstance(c, Publish)]


def failures(out: list[Command]) -> list[str]:
    return [c.code for c in out if isinstance(c, Fail)]


def test_hello_connects_once_and_says_when_the_clone_is_whole() -> None:
    script = Script()
    out = script.hello("a", A1)
    assert Connect("a", "tcp://a:1", "tcp://a:11") in out
    assert Reply("h", HelloAck(False)) in out
    out = script.up("a", A1)
    assert published(out) == [NodeUp("a", A1, "tcp://a:1")]
    assert script.hello("a", A1) == [Reply("h", HelloAck(True))]


def test_sealed_elsewhere_is_answered_at_once_with_its_owner() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: PENDING})
    out = script.locate(K[:3])
    answer = located(out)
    assert list(answer.states) == [SEALED, PENDING, GONE]
    assert owners(out) == [["a"], [], []]
    assert (list(answer.epochs), list(answer.requests)) == ([A1], ["tcp://a:1"])


def test_the_askers_own_pages_do_not_count() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    assert list(located(script.locate(K[:1], asker="a")).states) == [GONE]


def test_at_most_two_owners_and_the_fuller_one_first() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.up("b", B1, {K[0]: SEALED, K[1]: SEALED})
    script.up("c", 0xC1, {K[0]: SEALED})
    [first, second], other = owners(script.locate(K[:2]))
    assert first == "b" and second in "ac" and other == ["b"]


def test_equal_owners_take_turns() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    firsts = {owners(script.locate(K[:1]))[0][0] for _ in range(4)}
    assert firsts == {"a", "b"}


def test_a_suspect_owner_comes_last() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    script.feed(Tick(), 0.9)
    script.hello("b", B1, after=0.5)
    assert owners(script.locate(K[:2])) == [["b", "a"], ["a"]]
    script.hello("a", A1)
    assert owners(script.locate(K[:2])) == [["a", "b"], ["a"]]


def test_an_owner_that_has_it_in_memory_comes_before_one_that_has_it_on_disk() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: SEALED}, DISK)
    script.up("b", B1, {K[0]: SEALED, K[2]: SEALED})
    for _ in range(3):
        assert owners(script.locate(K[:3])) == [["b", "a"], ["a"], ["b"]], "whoever's turn it is"
    script.hello("b", B1, reads=1000, leased=900)
    assert owners(script.locate(K[:1])) == [["b", "a"]], "and however loaded"
    script.hello("b", B1, draining=True)
    assert owners(script.locate(K[:1])) == [["a", "b"]], "but not if it is about to go"


def test_unknown_and_not_expected_is_answered_at_once() -> None:
    script = Script()
    script.up("a", A1)
    assert list(located(script.locate(K[:2])).states) == [GONE], "what follows the hole is of no use"
    assert not len(script.state.waiters)


def test_an_answer_ends_with_the_first_hole() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: PENDING, K[3]: SEALED})
    assert list(located(script.locate(K[:4])).states) == [SEALED, PENDING, GONE]
    assert list(located(script.locate(K[:4], holes=True)).states) == [SEALED, PENDING, GONE, SEALED]
    assert list(located(script.locate(K[2:4])).states) == [GONE], "no prefix at all"


def test_tails_are_alternatives_and_make_no_hole() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[3]: SEALED})
    assert list(located(script.locate([K[0], K[2], K[3]], tails=2)).states) == [SEALED, GONE, SEALED]
    assert owners(script.locate([K[2], K[3]], tails=2)) == [[], ["a"]]
    assert owners(script.locate([K[2], K[3]], tails=9)) == [[], ["a"]], "more than there are"


def test_a_hole_far_down_ends_the_look_up() -> None:
    script = Script()
    keys = [b"%06d" % n for n in range(10_000)]
    script.up("a", A1, dict.fromkeys(keys[:3000] + keys[3001:], SEALED))
    answer = located(script.locate(keys))
    assert answer.states == bytes([SEALED]) * 3000 + bytes([GONE])
    assert answer.width == 1, "no key has a second owner"
    assert answer.owners[-1] == NO_OWNER and set(answer.owners[:-1]) == {0}
    whole = located(script.locate(keys, holes=True))
    assert whole.states == bytes([SEALED]) * 3000 + bytes([GONE]) + bytes([SEALED]) * 6999


def test_as_many_owners_are_told_as_are_wanted() -> None:
    script = Script()
    for number, node in enumerate("abcd"):
        script.up(node, A1 + number, {K[0]: SEALED})
    for width, told in ((0, 2), (1, 1), (3, 3), (16, 4)):
        [row] = owners(script.feed(Asked("l", Locate("", K[:1], 0, False, width=width))))
        assert len(row) == told == len(set(row))


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


def test_the_less_loaded_owner_comes_first() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    script.hello("a", A1, reads=9)
    assert owners(script.locate(K[:2])) == [["b", "a"], ["a"]], "though it holds less"
    script.hello("b", B1, reads=8, leased=100)
    assert owners(script.locate(K[:2])) == [["a", "b"], ["a"]], "9 and 8 + 1 are one class"
    script.hello("a", A1, reads=0, leased=900)
    script.hello("b", B1, reads=0, leased=100)
    assert owners(script.locate(K[:2])) == [["b", "a"], ["a"]]


def test_an_owner_that_drains_comes_last() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.up("b", B1, {K[0]: SEALED})
    script.hello("a", A1, draining=True)
    script.hello("b", B1, reads=99)
    for _ in range(3):
        assert owners(script.locate(K[:1])) == [["b", "a"]]


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


def test_no_keys_are_answered_at_once() -> None:
    assert located(Script().locate([], expected=True)).states == b""


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


def test_too_many_waiters_are_told_so() -> None:
    script = Script()
    for _ in range(MAX_WAITERS):
        script.state.handle(Asked("l", Locate("me", K[:1], 1000, True)), script.now)
    assert failures(script.locate(K[:1], expected=True)) == [ErrorCode.BUSY]


def test_what_a_metaserver_does_not_answer() -> None:
    assert failures(Script().feed(Asked("x", Drain()))) == [ErrorCode.UNSUPPORTED]


def test_dump_counts_what_is_held() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.locate(K[1:2], expected=True)
    dump = script.state.dump(script.now)
    assert dump["keys"] == {"sealed": 1, "pending": 0} and dump["waiters"] == 1
    assert dump["nodes"][0]["node"] == "a" and dump["nodes"][0]["state"] == "up"
