"""Events over real sockets: welcome, numbers, gaps, lost tails, and publishers that come back in a new life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from loopback import Inbox, bound_again, run
from pegaflow.common.bus.events import CATALOGUE, NODES, EventPublisher, EventSubscriber, Step, session_topic
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.envelope import EventHeader
from pegaflow.common.wire.messages.attach import SessionBeat, Welcome
from pegaflow.common.wire.messages.catalogue import Beat, NodeDown, NodeUp

Loop = asyncio.AbstractEventLoop
UP, DOWN = NodeUp("a", 1, "r"), NodeDown("a", 1, "dead")


class Seen(NamedTuple):
    topic: bytes
    header: EventHeader
    message: Any
    step: Step


class Listener:
    def __init__(self, factory: SocketFactory, loop: Loop, endpoint: str, *topics: bytes) -> None:
        self.inbox: Inbox[Seen] = Inbox()
        self.subscriber = EventSubscriber(factory, loop, endpoint, lambda *seen: self.inbox.put(Seen(*seen)))
        for topic in topics:
            self.subscriber.subscribe(topic)

    async def welcome(self) -> Seen:
        return await self.inbox.take(lambda seen: isinstance(seen.message, Welcome))


def both(factory: SocketFactory, loop: Loop) -> tuple[EventPublisher, Listener]:
    publisher = EventPublisher(factory, loop, "tcp://127.0.0.1:*", "n", 1)
    return publisher, Listener(factory, loop, publisher.endpoint, NODES)


def lossy(publisher: EventPublisher, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on everything is lost, until the returned function is called."""
    monkeypatch.setattr(publisher._port, "send", lambda _: False)
    return monkeypatch.undo


def test_a_new_subscriber_is_told_the_head() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher = EventPublisher(factory, loop, "tcp://127.0.0.1:*", "n", 1)
        publisher.publish(NODES, UP)
        publisher.publish(NODES, DOWN)
        listener = Listener(factory, loop, publisher.endpoint, NODES)
        seen = await listener.welcome()
        assert (seen.header, seen.step) == (EventHeader("n", 1, 2), Step.FIRST)
        assert publisher.publish(NODES, UP) == 3
        seen = await listener.inbox.take()
        assert (seen.message, seen.header.seq, seen.step) == (UP, 3, Step.NEXT)
        assert listener.subscriber.seen(NODES) == 3
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_topics_are_numbered_apart_and_need_not_be_subscribed() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher, listener = both(factory, loop)
        await listener.welcome()
        publisher.publish(CATALOGUE, UP)
        assert publisher.publish(NODES, UP) == 1
        assert (await listener.inbox.take()).topic == NODES
        assert (publisher.head(CATALOGUE), publisher.head(NODES)) == (1, 1)
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_a_session_topic_opens_and_closes() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher = EventPublisher(factory, loop, "tcp://127.0.0.1:*", "n", 1)
        topic = session_topic(7)
        assert publisher.publish(topic, SessionBeat()) == 0
        publisher.open_topic(topic)
        listener = Listener(factory, loop, publisher.endpoint, topic)
        assert (await listener.welcome()).topic == topic
        publisher.close_topic(topic)
        assert publisher.publish(topic, SessionBeat()) == 0
        listener.subscriber.subscribe(NODES)
        assert (await listener.welcome()).topic == NODES, "and nothing of the closed topic before it"
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_a_lost_event_is_noticed_at_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher, listener = both(factory, loop)
        await listener.welcome()
        again = lossy(publisher, monkeypatch)
        publisher.publish(NODES, UP)
        again()
        publisher.publish(NODES, DOWN)
        assert (await listener.inbox.take()).step is Step.GAP
        publisher.publish(NODES, UP)
        assert (await listener.inbox.take()).step is Step.NEXT
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_a_lost_tail_is_noticed_at_the_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher, listener = both(factory, loop)
        await listener.welcome()
        publisher.publish(NODES, Beat())
        assert (await listener.inbox.take()).step is Step.NEXT
        again = lossy(publisher, monkeypatch)
        publisher.publish(NODES, UP)
        again()
        publisher.publish(NODES, Beat())
        seen = await listener.inbox.take()
        assert (seen.step, seen.header.seq) == (Step.GAP, 1)
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_a_publisher_in_a_new_life_is_heard_again(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        endpoint = f"ipc://{tmp_path}/e"
        publisher = EventPublisher(factory, loop, endpoint, "n", 1)
        listener = Listener(factory, loop, endpoint, NODES)
        await listener.welcome()
        publisher.publish(NODES, UP)
        publisher.close()
        publisher = await bound_again(lambda: EventPublisher(factory, loop, endpoint, "n", 2))
        poker = loop.create_task(poke(listener))
        seen = await listener.inbox.take(lambda seen: seen.header.epoch == 2)
        assert (seen.header.seq, seen.step) == (0, Step.NEW_EPOCH)
        poker.cancel()
        listener.subscriber.close()
        publisher.close()

    async def poke(listener: Listener) -> None:
        while True:
            listener.subscriber.poke()
            await asyncio.sleep(0.02)

    run(test)


def test_an_event_that_does_not_decode_counts_as_lost_and_an_unknown_kind_as_seen() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher, listener = both(factory, loop)
        await listener.welcome()
        send = publisher._port.send

        def spoiled(frame: int, value: bytes) -> None:
            publisher._port.send = lambda frames: send([*frames[:frame], value, *frames[frame + 1 :]])  # type: ignore[method-assign]
            publisher.publish(NODES, UP)
            publisher._port.send = send  # type: ignore[method-assign]

        spoiled(1, b"\1from_the_future")
        seen = await listener.inbox.take()
        assert (seen.message, seen.step) == (None, Step.NEXT)
        for frame, value in ((3, b"\x91\x01"), (2, b""), (1, b"\2node_up")):
            spoiled(frame, value)
            publisher.publish(NODES, DOWN)
            seen = await listener.inbox.take()
            assert (seen.message, seen.step) == (DOWN, Step.GAP)
        assert listener.subscriber.malformed == 3
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_after_unsubscribing_nothing_more_comes() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher, listener = both(factory, loop)
        await listener.welcome()
        listener.subscriber.unsubscribe(NODES)
        listener.subscriber.unsubscribe(b"never")
        publisher.publish(NODES, UP)
        listener.subscriber.subscribe(CATALOGUE)
        assert (await listener.welcome()).topic == CATALOGUE
        assert listener.subscriber.seen(NODES) == 0
        listener.subscriber.close()
        publisher.close()

    run(test)


def test_a_second_subscriber_does_not_disturb_the_first() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        publisher, first = both(factory, loop)
        await first.welcome()
        publisher.publish(NODES, UP)
        second = Listener(factory, loop, publisher.endpoint, NODES)
        assert (await second.welcome()).header.seq == 1
        steps = [(await first.inbox.take()).step, (await first.inbox.take()).step]
        assert steps == [Step.NEXT, Step.NEXT], "the event, and a welcome that was meant for the other"
        first.subscriber.close()
        second.subscriber.close()
        publisher.close()

    run(test)
