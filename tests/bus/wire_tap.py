"""A man in the middle of one TCP connection: keeps what goes to the service, and may change a byte of it."""

from __future__ import annotations

import asyncio


class WireTap:
    """Listens on loopback and passes on to `port`. `flip`: number of the byte, counted over the stream, that is changed."""

    def __init__(self, port: int, flip: int | None = None) -> None:
        self._port, self._flip = port, flip
        self.seen = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._port)
        back = asyncio.ensure_future(_pass(there, writer))
        self._tasks.add(back)
        try:
            while data := await reader.read(65536):
                start = len(self.seen)
                self.seen += data
                if self._flip is not None and start <= self._flip < len(self.seen):
                    changed = bytearray(data)
                    changed[self._flip - start] ^= 0x40
                    data = bytes(changed)
                to.write(data)
                await to.drain()
        except OSError:
            pass
        finally:
            back.cancel()
            to.close()
            writer.close()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


GREETING = 64
"""Bytes that both sides of ZMTP 3 begin with; everything behind them depends on keys."""


async def replay(port: int, data: bytes) -> bytes:
    """Sends recorded bytes as they are, the greeting first; returns what was said to the rest, until silence or the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        writer.write(data[:GREETING])
        await reader.readexactly(GREETING)
        writer.write(data[GREETING:])
        async with asyncio.timeout(0.5):
            while part := await reader.read(65536):
                got += part
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return got
