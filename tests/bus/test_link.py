"""The link of an engine's process: what it says while it joins, and what must not end it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pegaflow.common import clock
from pegaflow.common.bus.events import session_topic
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.envelope import EventHeader, PublicationHeader, encode, open_envelope
from pegaflow.common.wire.messages import saves
from pegaflow.common.wire.messages.attach import Attached, Detach, SessionBeat
from pegaflow.connector.bus import RankBus, SchedulerBus
from pegaflow.connector.link_front import Phase
from pegaflow.connector.session import IntentRef, Member, SessionId, TierOptions

SESSION, EPOCH = 7, 1


class Recorder:
    """In place of the publisher's port."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def send(self, frames: list[bytes]) -> bool:
        self.sent.append(frames)
        return True

    def close(self) -> None:
        pass


def on_its_thread(bus: Any, call: Any) -> None:
    done = threading.Event()

    def run() -> None:
        call()
        done.set()

    bus.post(run)
    assert done.wait(10)


def joining(bus: Any, folder: Path) -> Recorder:
    """Puts a bus into the state in which it waits for its first event; runs on the bus's thread."""
    bus._epoch = EPOCH
    at = [f"ipc://{folder}/{name}.sock" for name in ("intents", "events", "control")]
    bus._attached = attached = Attached("a", SESSION, 2, b"t" * 16, 1, session_topic(SESSION), "", 0, "", 16384, *at)
    bus._streams.close()
    bus._streams.open(attached)
    bus._set(Phase.JOINING)
    bus._streams.subscription([b"\1"])
    recorder = Recorder()
    bus._outbox.close()
    bus._outbox.open(recorder, attached)
    return recorder


def event(bus: Any, message: Message, seq: int, epoch: int = EPOCH) -> None:
    """As if it had come over the tier's socket."""
    bus._streams._events._on_frames(encode(message, EventHeader("a", epoch, seq), session_topic(SESSION)))


def options(folder: Path) -> TierOptions:
    return TierOptions(f"ipc://{folder}/none.sock", folder, "read_write", 2.0, 5.0)


def test_the_alive_that_joins_lists_the_grant_that_came_first(tmp_path: Path) -> None:
    bus = RankBus(options(tmp_path), Member("e", "rank", 0, 0, 1, 0, 1), b"b" * 16, b"l" * 16, 16384, clock=clock.now)
    sent: list[list[bytes]] = []

    def first_event() -> None:
        recorder = joining(bus, tmp_path)
        grant = saves.Grant(1, 4, b"d" * 8, bytes([saves.GRANTED]), 1, u32s([0]), u32s([3]), u64s([9]), b"m" * 8)
        event(bus, grant, 5)
        sent.extend(recorder.sent)

    on_its_thread(bus, first_event)
    alive = open_envelope(sent[0], PublicationHeader).message()
    assert alive.events_seen == 5
    assert list(alive.grants) == [4], "else the tier would end a grant that this rank is about to use"
    bus.close()


def test_no_intent_before_every_rank_is_attached(tmp_path: Path) -> None:
    member = Member("e", "scheduler", 0, 0, 2, 0, 1)
    bus = SchedulerBus(options(tmp_path), member, b"b" * 16, b"f" * 16, {}, [b"l" * 16] * 2, [16384] * 2, clock=clock.now)

    def beat(members: int) -> None:
        event(bus, SessionBeat(u32s(range(1, members + 1)), u64s([1] * members)), 0)

    def publish() -> bool:
        return bus.publish_intent([b"f" * 16 + bytes(32)], [16], [0], ["r"], 0) is not None

    on_its_thread(bus, lambda: joining(bus, tmp_path))
    on_its_thread(bus, lambda: beat(2))
    assert bus.session() == SessionId(EPOCH, SESSION)
    assert not publish()
    on_its_thread(bus, lambda: beat(3))
    assert publish()
    bus.close()


def test_a_late_word_of_an_old_session_does_not_pay_for_a_new_grant_of_the_same_number(tmp_path: Path) -> None:
    bus = RankBus(options(tmp_path), Member("e", "rank", 0, 0, 1, 0, 1), b"b" * 16, b"l" * 16, 16384, clock=clock.now)
    message = saves.Grant(1, 1, b"", bytes([saves.GRANTED]), 1, u32s([0]), u32s([3]), u64s([9]), b"m" * 8)

    def come(seq: int) -> None:
        event(bus, message, seq, bus._epoch)

    on_its_thread(bus, lambda: joining(bus, tmp_path))
    on_its_thread(bus, lambda: come(1))
    old = bus._grants[1].grant

    def new_life() -> None:
        bus._void()
        joining(bus, tmp_path)
        bus._epoch = EPOCH + 1
        come(1)

    on_its_thread(bus, new_life)
    bus.abandoned(old, [0])
    assert bus._owed == {1: {0}}, "the new grant is still owed its last word"
    bus.close()


@pytest.mark.parametrize("asked", ["before the grant", "after the grant"])
def test_a_grant_that_comes_while_its_rank_is_joining_and_finds_nobody_is_given_back(tmp_path: Path, asked: str) -> None:
    """The scheduler half may join first and publish; the rank's save thread does not wait for the rank to join."""
    bus = RankBus(options(tmp_path), Member("e", "rank", 0, 0, 1, 0, 1), b"b" * 16, b"l" * 16, 16384, clock=clock.now)
    message = saves.Grant(1, 4, b"d" * 8, bytes([saves.GRANTED]), 1, u32s([0]), u32s([3]), u64s([9]), b"m" * 8)
    ref = IntentRef(SessionId(EPOCH, SESSION), 1, b"d" * 8)
    recorders: list[Recorder] = []

    def take() -> None:
        assert bus.take_grant(ref, clock.now()) is None

    def come() -> None:
        recorder = joining(bus, tmp_path)
        if asked == "before the grant":
            take()
        bus._on_event(EventHeader("a", EPOCH, 5), message)
        if asked == "after the grant":
            take()
        recorders.append(recorder)

    on_its_thread(bus, come)
    on_its_thread(bus, lambda: event(bus, SessionBeat(u32s([2]), u64s([1])), 5))
    assert bus.session() == ref.session
    on_its_thread(bus, lambda: None)
    said = [open_envelope(frames, PublicationHeader).message() for frames in recorders[0].sent]
    assert [(word.grant, list(word.slots)) for word in said if isinstance(word, saves.Abandoned)] == [(4, [3])]
    assert bus._owed == {}
    bus.close()


def test_a_beat_that_fails_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = RankBus(options(tmp_path), Member("e", "rank", 0, 0, 1, 0, 1), b"b" * 16, b"l" * 16, 16384, clock=clock.now)
    again = threading.Event()
    beats = iter([True])

    def poke() -> None:
        if next(beats, False):
            raise RuntimeError("broken on purpose")
        again.set()

    on_its_thread(bus, lambda: monkeypatch.setattr(bus._streams, "poke", poke))
    assert again.wait(10)
    bus.close()


@pytest.mark.parametrize("tier", ["hears it", "does not answer", "has another life"])
def test_a_process_that_ends_says_goodbye_after_its_last_word_was_heard(
    tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The goodbye goes by another socket: were it first, the tier would end the grant, and with it pages that are written."""
    bus = RankBus(options(tmp_path), Member("e", "rank", 0, 0, 1, 0, 1), b"b" * 16, b"l" * 16, 16384, clock=clock.now)
    message = saves.Grant(1, 4, b"d" * 8, bytes([saves.GRANTED]), 1, u32s([0]), u32s([3]), u64s([9]), b"m" * 8)
    goodbyes: list[tuple[Message, int]] = []

    def written_then_end() -> None:
        recorder = joining(bus, tmp_path)
        event(bus, message, 5)
        grant = bus._grants[1].grant
        bus._owed.clear()
        bus._tell(grant, [0], saves.Written)
        send = bus._rpc.send

        def watched(goodbye: Message, seconds: float, then: Any) -> None:
            goodbyes.append((goodbye, len(bus._outbox.window)))
            send(goodbye, seconds, then)

        monkeypatch.setattr(bus._rpc, "send", watched)
        bus._begin_close()
        assert bus._phase is Phase.ATTACHED and not goodbyes, "it still owes the tier its last word"
        assert any(frames for frames in recorder.sent)

    on_its_thread(bus, written_then_end)
    if tier == "hears it":
        on_its_thread(bus, lambda: event(bus, SessionBeat(u32s([2]), u64s([2])), 5))
    elif tier == "has another life":
        on_its_thread(bus, lambda: event(bus, SessionBeat(u32s([2]), u64s([2])), 5, EPOCH + 1))
    bus.close()
    assert not bus._thread.alive
    left = [unheard for goodbye, unheard in goodbyes if isinstance(goodbye, Detach)]
    assert left == {"hears it": [0], "does not answer": [1], "has another life": []}[tier]
