"""What movers are told of peers, and who of the movers is asked whether it still listens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pegaflow.common import clock
from pegaflow.services.tier.mover.child import Mover
from pegaflow.services.tier.mover.introductions import Introductions
from pegaflow.services.tier.mover.watch import WATCH, Watch
from pegaflow.services.tier.mover.wire import AddPeer, ForgetPeer, Message, Metadata, Ping, WireBroken


class Hearing(Mover):
    """A mover that was never started, and what it was sent."""

    def __init__(self) -> None:
        super().__init__(Path(), "a", on_message=lambda mover, message: None, on_exit=lambda mover: None)
        self.heard: list[Message] = []

    def send(self, command: Message) -> None:
        self.heard.append(command)


def metadata(node: str, blob: bytes = b"blob") -> bytes:
    return Metadata(f"{node}:0123", 4096, 8192, blob).pack()


def told(mover: Hearing) -> list[tuple[type[Message], str]]:
    """Kind and peer of what it was sent since the last look."""
    heard: list[tuple[type[Message], str]] = [
        (type(message), message.peer) for message in mover.heard if isinstance(message, AddPeer | ForgetPeer)
    ]
    mover.heard.clear()
    return heard


def known(introductions: Introductions, mover: Hearing, peer: str, blob: bytes = b"blob") -> list[tuple[type[Message], str]]:
    introductions.learn(peer, metadata(peer.rpartition("/")[0], blob))
    introductions.introduce(mover, peer)
    return told(mover)


def test_a_peer_is_introduced_once_and_again_when_it_has_other_metadata() -> None:
    introductions, mover = Introductions(), Hearing()
    introductions.started(mover)
    assert known(introductions, mover, "b/1") == [(AddPeer, "b/1")]
    assert known(introductions, mover, "b/1") == []
    assert known(introductions, mover, "b/1", b"other") == [(AddPeer, "b/1")]
    second = Hearing()
    introductions.started(second)
    assert known(introductions, second, "b/1", b"other") == [(AddPeer, "b/1")]


def test_a_new_life_of_a_node_ends_the_one_before() -> None:
    introductions, mover = Introductions(), Hearing()
    introductions.started(mover)
    known(introductions, mover, "b/1")
    known(introductions, mover, "c/1")
    assert known(introductions, mover, "b/2") == [(ForgetPeer, "b/1"), (AddPeer, "b/2")]
    assert len(introductions) == 2


def test_the_peer_unused_for_longest_goes_when_there_are_too_many() -> None:
    introductions, mover = Introductions(limit=2), Hearing()
    introductions.started(mover)
    known(introductions, mover, "b/1")
    known(introductions, mover, "c/1")
    known(introductions, mover, "b/1")
    assert known(introductions, mover, "d/1") == [(ForgetPeer, "c/1"), (AddPeer, "d/1")]
    assert known(introductions, mover, "c/1") == [(ForgetPeer, "b/1"), (AddPeer, "c/1")]
    assert len(introductions) == 2


def test_metadata_of_another_node_changes_nothing() -> None:
    introductions, mover = Introductions(), Hearing()
    introductions.started(mover)
    known(introductions, mover, "b/1")
    with pytest.raises(WireBroken, match="'c:0123'"):
        introductions.learn("b/1", metadata("c"))
    with pytest.raises(WireBroken):
        introductions.learn("b/2", b"garbage")
    assert told(mover) == [] and len(introductions) == 1
    assert known(introductions, mover, "b/1") == []


def test_who_does_not_answer_is_hung_unless_we_ourselves_were_held_up() -> None:
    async def script() -> None:
        quick, slow = Hearing(), Hearing()
        hung: list[Mover] = []
        watch = Watch(3600.0, lambda: [quick, slow], hung.append)
        watch.start()
        try:
            assert quick.heard == slow.heard == [Ping(WATCH)]
            watch.answered(quick)
            watch._look(clock.now() - 5.0)
            assert hung == [], "its answer may lie unread"
            assert (len(quick.heard), len(slow.heard)) == (2, 1)
            watch.answered(quick)
            watch._look(clock.now())
            assert hung == [slow]
            watch.answered(slow)
            watch.answered(quick)
            watch._look(clock.now())
            assert hung == [slow]
        finally:
            watch.stop()

    asyncio.run(script())
