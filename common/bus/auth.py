"""The doorman: answers libzmq's question whether a key may come in (ZAP, RFC 27), for all sockets of one context.

    a peer's handshake ─▶ libzmq ─▶ inproc://zeromq.zap.01 ─▶ Doorman ─▶ 200 and the key as User-Id, or 300

Refused is 300 and not 400: after 400 a client gives up for good, and a key that is listed a minute later would need a restart.
After 300 libzmq lets both sides run into their handshake timeout (`sockets.HANDSHAKE_MS`), and the client comes again.
The handshake waits in libzmq's own thread, never the event loop; an exception here answers 500 and costs nobody else anything.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import zmq
from pegaflow.common import logs
from pegaflow.common.bus.keyring import Keyring
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.roles import Identity, may_hear

ENDPOINT = "inproc://zeromq.zap.01"
ASKS, EVENTS, LOCAL = b"asks", b"events", b"ipc"
"""ZAP domains: sockets that answer requests, sockets that publish, and either of them on ipc, where no key is needed."""
_OK, _REFUSED, _FAILED = b"200", b"300", b"500"
_LOG_FIRST = 16
"""A refused client comes again every few seconds: the first few are logged one by one, then each doubling of their number."""

log = logs.get(__name__)


class Doorman:
    """Owns its socket. `refused`: counts by reason; what was refused never reached a service."""

    def __init__(self, sock: zmq.Socket[bytes], ring: Keyring, loop: asyncio.AbstractEventLoop) -> None:
        self._ring = ring
        self.refused: Counter[str] = Counter()
        self._port = Port(sock, loop, self._asked)

    def _asked(self, frames: list[bytes]) -> None:
        # route, empty │ version, request id, domain, address, identity, mechanism, credentials …
        route, rest = frames[:2], frames[2:]
        request_id = rest[1] if len(rest) > 1 else b""
        status, user = _FAILED, ""
        try:
            reason, user = self._judge(rest)
            status = _REFUSED if reason else _OK
            if reason:
                self._count(reason, rest)
        finally:
            text = b"" if status == _OK else b"refused"
            self._port.send([*route, b"1.0", request_id, status, text, user.encode(), b""])

    def _judge(self, request: list[bytes]) -> tuple[str, str]:
        """Why it may not come in (empty: it may), and its key in hex."""
        if len(request) < 6 or request[0] != b"1.0":
            return "malformed", ""
        domain, mechanism = request[2], request[5]
        if domain == LOCAL:
            return "", ""
        if mechanism != b"CURVE" or len(request) < 7:
            return "no_key", ""
        key = request[6].hex()
        who = self._ring.identity(key)
        if who is None:
            return "unknown_key", key
        if domain == EVENTS and not may_hear(self._ring.service, who.role):
            return "role", key
        return "", key

    def _count(self, reason: str, request: list[bytes]) -> None:
        self.refused[reason] += 1
        count = self.refused[reason]
        if count <= _LOG_FIRST or count & (count - 1) == 0:
            address = request[3].decode(errors="replace") if len(request) > 3 else ""
            key = request[6].hex() if len(request) > 6 else ""
            log.warning("connection_refused", reason=reason, peer=address, key=key, count=count)

    def known(self, key: str) -> Identity | None:
        """Who holds the key that a message came under, as the list says now."""
        return self._ring.identity(key)

    def close(self) -> None:
        self._port.close()
