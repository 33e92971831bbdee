"""Events: one XPUB per process, numbered per topic, with a welcome for each new subscriber and beats that show the head.

A message's header carries (node, epoch, seq). `welcome` and beats carry the head instead of a number of their own, so a
subscriber that lost the tail notices it at the next beat.

    topics    s.<session>  grants, acks and beats of one session        c  catalogue deltas and beats
              i            intents, for taps                            n  nodes up and down (metaserver)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from pegaflow.common.bus.port import Port
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.envelope import EventHeader, encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, WireError
from pegaflow.common.wire.messages.attach import SessionBeat, Welcome
from pegaflow.common.wire.messages.catalogue import Beat, CatalogueBeat

CATALOGUE, INTENTS, NODES = b"c", b"i", b"n"
SHOW_HEAD = frozenset({Welcome.KIND, SessionBeat.KIND, CatalogueBeat.KIND, Beat.KIND})


def session_topic(session: int) -> bytes:
    return b"s.%016x" % session


class EventPublisher:
    """The publishing end. Owns its socket."""

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoint: str, node: str, epoch: int) -> None:
        self._factory, self._node, self._epoch = factory, node, epoch
        self._heads: dict[bytes, int] = {CATALOGUE: 0, INTENTS: 0, NODES: 0}
        sock, self.endpoint = factory.bound_xpub(endpoint)
        self._port = Port(sock, loop, self._on_frames)

    def bind(self, endpoint: str) -> str:
        """Publishes on one more endpoint; returns it with its real port."""
        return self._port.bind(self._factory, endpoint)

    def open_topic(self, topic: bytes) -> None:
        self._heads.setdefault(topic, 0)

    def close_topic(self, topic: bytes) -> None:
        self._heads.pop(topic, None)

    def head(self, topic: bytes) -> int:
        return self._heads[topic]

    def publish(self, topic: bytes, message: Message) -> int:
        """Sends and returns the number; a beat shows the head and takes none. A topic that is not open is ignored (0)."""
        head = self._heads.get(topic)
        if head is None:
            return 0
        if message.KIND not in SHOW_HEAD:
            head += 1
            self._heads[topic] = head
        self._port.send(encode(message, EventHeader(self._node, self._epoch, head), topic))
        return head

    def _on_frames(self, frames: list[bytes]) -> None:
        if frames and frames[0][:1] == b"\1" and frames[0][1:] in self._heads:
            self.publish(frames[0][1:], Welcome())

    def close(self) -> None:
        self._port.close()


class Step(StrEnum):
    """How an event relates to what was seen before on its topic."""

    FIRST = "first"
    NEXT = "next"
    GAP = "gap"
    OLD = "old"
    NEW_EPOCH = "new_epoch"


class TopicCursor:
    """Pure: what one subscriber has seen of one topic of one publisher."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seen = 0

    def feed(self, epoch: int, seq: int, shows_head: bool) -> Step:
        """Moves on and says what happened. After GAP and NEW_EPOCH the cursor stands at this event."""
        if epoch != self.epoch:
            first = self.epoch == 0
            self.epoch, self.seen = epoch, seq
            return Step.FIRST if first else Step.NEW_EPOCH
        due = self.seen if shows_head else self.seen + 1
        if seq == due:
            self.seen = seq
            return Step.NEXT
        if seq < due:
            return Step.OLD
        self.seen = seq
        return Step.GAP


OnEvent = Callable[[bytes, EventHeader, Any, Step], None]


class EventSubscriber:
    """A SUB to one publisher. `on_event(topic, header, message, step)`; message None: a kind that is not known here.

    A message of a known kind that does not decode is counted and treated as lost.
    """

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoint: str, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._cursors: dict[bytes, TopicCursor] = {}
        self.malformed = 0
        self._port = Port(factory.sub(endpoint), loop, self._on_frames)

    def subscribe(self, topic: bytes) -> None:
        self._cursors.setdefault(topic, TopicCursor())
        self._port.subscribe(topic)

    def unsubscribe(self, topic: bytes) -> None:
        if self._cursors.pop(topic, None) is not None:
            self._port.unsubscribe(topic)

    def seen(self, topic: bytes) -> int:
        cursor = self._cursors.get(topic)
        return cursor.seen if cursor else 0

    def poke(self) -> None:
        """Call it regularly: a SUB re-subscribes after a reconnect only when it is touched."""
        self._port.poke()

    def _on_frames(self, frames: list[bytes]) -> None:
        try:
            envelope = open_envelope(frames, EventHeader)
        except WireError:
            self.malformed += 1
            return
        cursor = self._cursors.get(envelope.topic)
        if cursor is None:
            return
        header: EventHeader = envelope.header
        try:
            message = envelope.message()
        except WireError as error:
            self.malformed += error.code != ErrorCode.UNSUPPORTED
            if error.code != ErrorCode.UNSUPPORTED:
                return  # as if it was lost: what comes next on this topic shows the gap
            message = None
        step = cursor.feed(header.epoch, header.seq, envelope.kind in SHOW_HEAD)
        self._on_event(envelope.topic, header, message, step)

    def close(self) -> None:
        self._port.close()
