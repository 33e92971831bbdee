"""What one process publishes to the tier: numbered messages, kept until acknowledged and repeated until then
(docs/protocol.md 4.1), and unnumbered ones beside them.

All methods run on the link's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pegaflow.common import faults
from pegaflow.common.bus.events import INTENTS
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.reliable import SendWindow
from pegaflow.common.fault_points import Point
from pegaflow.common.wire.codec import Message, encode_body
from pegaflow.common.wire.envelope import PublicationHeader, encode, frames
from pegaflow.common.wire.messages.attach import Attached

log = logging.getLogger(__name__)


class Outbox:
    """Owns the publisher's port while a session lasts; the numbers go on from one session to the next."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop, self._clock = loop, clock
        self._port: Port | None = None
        self._attached: Attached | None = None
        self._repeat: asyncio.TimerHandle | None = None
        self.window = SendWindow()

    def open(self, port: Port, attached: Attached) -> None:
        self._port, self._attached = port, attached

    def close(self) -> None:
        """Idempotent. What is not acknowledged stays in the window."""
        self._stop_repeating()
        if self._port is not None:
            self._port.close()
        self._port = self._attached = None

    def publish(self, message: Message) -> int | None:
        """Numbers and sends; what was accepted is never dropped here. None: there is no session."""
        if self._port is None:
            return None
        seq = self.window.push(message.KIND, encode_body(message), must=True)
        try:
            self._send_due()
        except Exception:  # it has its number and stands in the window: it is repeated until it has come
            log.exception("pegaflow outbox: publication %d was not sent", seq)
        return seq

    def say(self, message: Message) -> None:
        """Once, without a number; lost where the session is over."""
        if self._port is not None and self._attached is not None:
            self._port.send(encode(message, self._header(self._attached, 0), INTENTS))

    def acked(self, following: int) -> None:
        """The tier has everything below `following`."""
        self.window.ack(following, self._clock())
        self._arm()

    def _send_due(self) -> None:
        if self._port is None or self._attached is None:
            return
        for numbered in self.window.due(self._clock()):
            faults.reach(Point.CONNECTOR_PUBLISH_BEFORE_SENT)
            self._port.send(frames(numbered.kind, numbered.body, self._header(self._attached, numbered.seq), INTENTS))
            faults.reach(Point.CONNECTOR_PUBLISH_AFTER_SENT)
        self._arm()

    def _arm(self) -> None:
        self._stop_repeating()
        due = self.window.next_due()
        if due is not None and self._port is not None:
            self._repeat = self._loop.call_later(max(0.001, due - self._clock()), self._send_due)

    def _stop_repeating(self) -> None:
        if self._repeat is not None:
            self._repeat.cancel()
            self._repeat = None

    @staticmethod
    def _header(attached: Attached, seq: int) -> PublicationHeader:
        return PublicationHeader(attached.session, attached.member, seq, attached.token)
