"""The two streams of a session: the tier's events to us, our publications to the tier. A session begins when both flow.

    open ──▶ our publisher sees the tier's subscription ─┐
        └──▶ the first event of our topic is here ───────┴▶ joined()

All methods run on the link's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pegaflow.common.bus.events import EventSubscriber, Step
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.envelope import EventHeader
from pegaflow.common.wire.messages.attach import Attached
from pegaflow.connector.outbox import Outbox

OnEvent = Callable[[EventHeader, Any], None]


class Streams:
    """`on_event` gets each event of the session's topic, `joined` is called once per session, after its first event."""

    def __init__(
        self,
        factory: SocketFactory,
        loop: asyncio.AbstractEventLoop,
        outbox: Outbox,
        on_event: OnEvent,
        joined: Callable[[], None],
    ) -> None:
        self._factory, self._loop, self._outbox = factory, loop, outbox
        self._on_event, self._joined = on_event, joined
        self._events: EventSubscriber | None = None
        self._topic = b""
        self._subscribed = self._welcomed = self._told = False

    def open(self, attached: Attached) -> None:
        """Raises where an endpoint of the tier cannot be used."""
        self._subscribed = self._welcomed = self._told = False
        self._topic = attached.topic
        self._events = EventSubscriber(self._factory, self._loop, attached.events, self.event)
        self._events.subscribe(attached.topic)
        self._outbox.open(Port(self._factory.xpub(attached.intents), self._loop, self.subscription), attached)

    def close(self) -> None:
        """Idempotent."""
        self._outbox.close()
        if self._events is not None:
            self._events.close()
        self._events = None

    @property
    def seen(self) -> int:
        """Number of the last event that came in."""
        return 0 if self._events is None else self._events.seen(self._topic)

    def poke(self) -> None:
        if self._events is not None:
            self._events.poke()

    def subscription(self, received: list[bytes]) -> None:
        """A frame on our publisher: 1 and a topic, when the tier subscribes."""
        if received and received[0][:1] == b"\1":
            self._subscribed = True
            self._join()

    def event(self, topic: bytes, header: EventHeader, message: Any, step: Step) -> None:
        self._on_event(header, message)
        # Last: joining says `alive`, which lists what this process holds of all events seen, and this one counts as seen.
        self._welcomed = True
        self._join()

    def _join(self) -> None:
        if self._subscribed and self._welcomed and not self._told:
            self._told = True
            self._joined()
