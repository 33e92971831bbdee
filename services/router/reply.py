"""Both directions of one request at the router's edge, for what every answer has to have.

An answer that is complete while its request still arrives is the hard case (413, 401, 404, …): closing the connection
then resets it, and the client, busy sending, never reads the answer. So the answer goes out at once, the rest of the
body is read and thrown away for a while, and only then is the answer's end declared (the "lingering close" of nginx).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from pegaflow.services.router.client_headers import REQUEST_ID, values
from pegaflow.services.router.disconnect import Message, Receive, Scope, Send
from pegaflow.services.router.openai import Json, dumps

LINGER_SECONDS: Final = 5.0
SHORT_BODY_BYTES: Final = 1 << 16
"""What is shorter is read to its end, and the connection is used again."""


class Reply:
    """`receive` and `send` for the application inside; `end` must be called when it has returned."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._id = request_id
        length = b"".join(values(scope["headers"], "content-length"))
        chunked = bool(values(scope["headers"], "transfer-encoding"))
        self._all_read = not chunked and length.strip(b"0") == b""
        self._short = not chunked and len(length) < 10 and int(length or b"0") <= SHORT_BODY_BYTES
        # Who waits for "100 Continue" and gets an answer instead sends no body.
        self._silent = bool(values(scope["headers"], "expect"))
        self._held = False
        self.started = False

    async def receive(self) -> Message:
        event = await self._receive()
        self._silent = False
        if event["type"] != "http.request" or not event.get("more_body"):
            self._all_read = True
        return event

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self._silent = self._silent or message["status"] == 408  # nothing came for long enough
            headers = [*message.get("headers", ()), (REQUEST_ID.encode(), self._id.encode())]
            if not self._all_read and (self._silent or not self._short):
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        elif not self._all_read and not message.get("more_body"):
            self._held = True
            message = {**message, "more_body": True}
        await self._send(message)

    async def answer(self, status: int, body: Json, headers: Mapping[str, str]) -> None:
        """A whole answer in JSON."""
        raw = dumps(body)
        pairs = {"Content-Type": "application/json", "Content-Length": str(len(raw)), **headers}
        encoded = [(name.lower().encode(), value.encode()) for name, value in pairs.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": raw})

    async def end(self) -> None:
        if not self._held:
            return
        if not self._silent:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_SECONDS):
                    while not self._all_read:
                        await self.receive()
        await self._send({"type": "http.response.body", "body": b""})
