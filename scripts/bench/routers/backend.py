"""The trivial engine, in a process of its own: answers at once, and streams as fast as it can.

    python -m routers.backend PORT          ready ▶ stdout; ends when it is killed

Each piece of a stream is a write of its own in its own turn of the event loop, as engines' tokens are; whoever reads more slowly
than that finds several of them in one read.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Final, cast

import uvloop

from routers.answers import json_answer, read, streamed, whole
from routers.framing import Framing, Head

_MODELS: Final = json_answer({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 1 << 17}]})
_HEALTH: Final = json_answer({})
_UNKNOWN: Final = json_answer({"error": {"message": "there is nothing here", "code": 404}}, "404 Not Found")


class Connection(asyncio.Protocol):
    """Of a router: one request after the other."""

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._framing = Framing()
        self._line = b""
        self._body = bytearray()
        self._pieces: Iterator[bytes] = iter(())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._pieces = iter(())

    def data_received(self, data: bytes) -> None:
        for piece in self._framing.feed(data):
            if isinstance(piece, Head):
                self._line = piece.line
                self._body.clear()
            elif piece is not None:
                self._body += piece
            else:
                self._answer(self._line.split(b" ")[1])

    def _answer(self, path: bytes) -> None:
        match path:
            case b"/v1/chat/completions" | b"/v1/completions":
                asked = read(path == b"/v1/chat/completions", bytes(self._body))
                if asked.stream:
                    self._pieces = streamed(asked)
                    self._go_on()
                else:
                    self._transport.write(whole(asked))
            case b"/v1/models":
                self._transport.write(_MODELS)
            case b"/health":
                self._transport.write(_HEALTH)
            case _:
                self._transport.write(_UNKNOWN)

    def _go_on(self) -> None:
        piece = next(self._pieces, None)
        if piece is not None:
            self._transport.write(piece)
            self._loop.call_soon(self._go_on)


async def main(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(loop), "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
