"""The command `pegaflow-router` as a process on a port of its own choice, and a bare client for what is below HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from scripted_engine import Json


class Process:
    """`log` holds the lines it has written so far, parsed; `raw` the same as it wrote them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.log: list[Json] = []
        self.raw = b""
        self._written = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def logged(self, event: str, count: int = 1, **fields: str) -> Json:
        """The `count`-th line of this event, with these fields, once it is written. AssertionError if the process ends before."""
        async with self._written:
            await self._written.wait_for(lambda: len(self._of(event, **fields)) >= count or self._reading.done())
        assert len(self._of(event, **fields)) >= count, self.raw.decode()
        return self._of(event, **fields)[count - 1]

    async def hang_up(self) -> None:
        """SIGHUP, and wait until it was dealt with."""
        ends = ("reloaded", "reload_failed")
        count = sum(len(self._of(event, what="config")) for event in ends) + 1
        self.process.send_signal(signal.SIGHUP)
        async with self._written:
            await self._written.wait_for(
                lambda: sum(len(self._of(event, what="config")) for event in ends) >= count or self._reading.done()
            )
        assert not self._reading.done(), self.raw.decode()

    async def ended(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading

    def _of(self, event: str, **fields: str) -> list[Json]:
        return [line for line in self.log if all(line.get(name) == value for name, value in ({"event": event} | fields).items())]

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.raw += line
            # What Python itself writes, a warning or a traceback, is no JSON, and shown by `raw`.
            event = json.loads(line) if line.startswith(b"{") else {"event": "not JSON"}
            async with self._written:
                self.log.append(event)
                self._written.notify_all()
        async with self._written:
            self._written.notify_all()


@asynccontextmanager
async def router(*argv: str) -> AsyncIterator[Process]:
    """A router that listens, and has checked its engines once when it answers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PEGAFLOW_")}
    command = [sys.executable, "-m", "pegaflow.services.router", "--port", "0", *argv]
    made = Process(await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment))
    try:
        made.port = (await made.logged("listening"))["port"]
        yield made
    finally:
        await made.ended()


async def until_ready(session: aiohttp.ClientSession, url: str) -> None:
    while True:
        try:
            async with session.get(url + "/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.02)


class Raw:
    """One connection, spoken by hand. `answer` reads one whole answer with a Content-Length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:] if line)}
        return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def closed(self) -> bool:
        """Waits for the router to close; False if it says something instead."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def head(path: str, headers: Mapping[str, str] | None = None, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
