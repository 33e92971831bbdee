"""What a metaserver says of itself when somebody inspects it."""

from __future__ import annotations

from typing import Any

from metaserver_script import A1, A2, B1, K, Script, failures, owners
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.messages.catalogue import DISK, GONE, MEMORY, PENDING, SEALED, Bye, SyncChunk
from pegaflow.common.wire.messages.inspection import Believe, Believed, Digest, Digests, Resync
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.metaserver.commands import AskChunk, Command, Reply
from pegaflow.services.metaserver.events import Asked, ChunkAnswer


def reply(out: list[Command]) -> Any:
    [message] = [c.message for c in out if isinstance(c, Reply)]
    return message


def test_what_is_believed_of_a_node_and_its_digest() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED, K[1]: PENDING}, level=DISK)
    script.up("b", B1, {K[0]: SEALED})
    script.delta("a", A1, k2=SEALED)
    found = reply(script.feed(Asked("x", Believe("a", K[:4]))))
    assert isinstance(found, Believed)
    assert (found.epoch, found.seq) == (A1, 1)
    assert (list(found.states), list(found.levels)) == ([SEALED, PENDING, SEALED, GONE], [DISK, DISK, MEMORY, 0])
    assert list(found.sizes) == [64, 64, 64, 0]
    digests = reply(script.feed(Asked("x", Digest())))
    assert isinstance(digests, Digests) and digests.check() is None
    assert (list(digests.nodes), list(digests.seqs)) == (["a", "b"], [1, 0])
    assert (list(digests.sealed), list(digests.pending), list(digests.syncing)) == ([2, 1], [1, 0], [0, 0])
    copy = script.state.nodes.by_name["a"].clone.current
    assert copy is not None and digests.digests[:16] == copy.digest != digests.digests[16:]
    assert failures(script.feed(Asked("x", Believe("z", K[:1])))) == ["unknown"]


def test_a_catalogue_is_copied_anew_when_somebody_asks() -> None:
    script = Script()
    script.hello("a", A1)
    assert reply(script.feed(Asked("x", Resync("a")))) == Done(), "the first snapshot is to come anyway"
    script.up("a", A1, {K[0]: SEALED})
    out = script.feed(Asked("x", Resync("a")))
    [ask] = [c for c in out if isinstance(c, AskChunk)]
    assert Reply("x", Done()) in out and script.state.counts["sync_asked"] == 1
    assert owners(script.locate(K[:1], wait_ms=0)) == [["a"]], "the old copy stands until the new one is in"
    chunk = SyncChunk(ask.sync.clone_epoch, ask.sync.sync_id, 0, 1, 0, K[1:2], bytes([SEALED]), bytes(1), u32s([64]))
    script.feed(ChunkAnswer("a", ask.sync.sync_id, chunk))
    assert owners(script.locate(K[1:2], wait_ms=0)) == [["a"]]
    assert failures(script.feed(Asked("x", Resync("z")))) == ["unknown"]


def test_lives_that_ended_are_remembered() -> None:
    script = Script()
    script.up("a", A1, {K[0]: SEALED})
    script.hello("a", A2)
    script.up("b", B1, {K[0]: SEALED, K[1]: SEALED})
    script.feed(Asked("x", Bye("b", B1)))
    script.now += 2.0
    left = script.state.dump(script.now)["left"]
    assert all(one["requests"] for one in left), "where it was asked: the tool looks whether anybody listens there"
    assert [(one["node"], one["epoch"], one["reason"], one["ago_ms"], one["sealed"]) for one in left] == [
        ("a", f"{A1:016x}", "replaced", 2000, None),
        ("b", f"{B1:016x}", "bye", 2000, 2),
    ]
    for number in range(200):
        script.hello("c", 1000 + number)
    assert len(script.state.dump(script.now)["left"]) == 64
