"""The clients, in a process of its own, told what to do by lines on stdin (helper.py is the other end).

    python -m routers.load                  ready ▶ stdout
    {"port": 8000, "endpoint": "chat", "stream": true, "tokens": 32, "concurrency": 16, "seconds": 1.0, "pids": [7]}
        ▶ {"seconds": …, "answers": …, "chunks": …, "p50_us": …, "p99_us": …, "first_us": …, "cpu_s": …}
    {…, "requests": 5000, …} in place of seconds

Each of `concurrency` connections has one request open: the next is sent when the answer to the one before is whole. Each is
used once before the time begins. `cpu_s` is what the processes `pids` have used of it. An answer other than 200, or with
another number of events than asked for, ends the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any, NoReturn, cast

import uvloop
from report import percentile

from routers.costs import cpu_seconds
from routers.events import Events
from routers.framing import Framing, Head
from routers.question import Question


class Load:
    """One order. Answers are counted between :meth:`_begin` and :meth:`_end`."""

    def __init__(self, question: Question, requests: int | None, pids: list[int]) -> None:
        self.question, self.raw = question, question.raw
        self._requests, self._pids = requests, pids
        self._connections: list[Connection] = []
        self._open = 0
        self._counts = False
        self.all_answered = asyncio.Event()
        self.found: dict[str, Any] = {}
        self._sent = self._chunks = 0
        self._took: list[float] = []
        self._first: list[float] = []

    async def run(self, port: int, concurrency: int, seconds: float | None) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        for _ in range(concurrency):
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", port)
            self._connections.append(connection)
        self._send_all()
        await self.all_answered.wait()
        self.all_answered.clear()
        self._begin()
        self._send_all()
        if seconds is not None:
            loop.call_later(seconds, self._end)
        await self.all_answered.wait()
        if self._counts:
            self._end()
        for connection in self._connections:
            connection.close()
        return self.found

    def _begin(self) -> None:
        self._counts = True
        self._cpu, self._began = cpu_seconds(self._pids), time.perf_counter()

    def _send_all(self) -> None:
        for connection in self._connections:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        self._open += 1
        self._sent += 1
        connection.send()

    def heard(self, events: int) -> None:
        self._chunks += events

    def answered(self, connection: Connection, took: float, first: float) -> None:
        self._open -= 1
        if self._counts:
            self._took.append(took)
            self._first.append(first)
            if self._requests is None or self._sent < self._requests + len(self._connections):
                self._send(connection)
        if not self._open:
            self.all_answered.set()

    def _end(self) -> None:
        seconds, cpu = time.perf_counter() - self._began, cpu_seconds(self._pids) - self._cpu
        self._counts = False
        if not self._took:
            _give_up(f"no answer in {seconds} s")
        self.found = {
            "seconds": seconds,
            "answers": len(self._took),
            "chunks": self._chunks - len(self._connections) * self.question.events,
            "p50_us": percentile(self._took, 0.5) * 1e6,
            "p99_us": percentile(self._took, 0.99) * 1e6,
            "first_us": percentile(self._first, 0.5) * 1e6,
            "cpu_s": cpu,
        }


class Connection(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self, load: Load) -> None:
        self._load = load
        self._framing = Framing()
        self._events = Events()
        self._sent = self._first = 0.0
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed:
            _give_up(f"the connection was lost: {exc}")

    def close(self) -> None:
        self._closed = True
        self._transport.close()

    def send(self) -> None:
        self._events = Events()
        self._first = 0.0
        self._sent = time.perf_counter()
        self._transport.write(self._load.raw)

    def data_received(self, data: bytes) -> None:
        for piece in self._framing.feed(data):
            if isinstance(piece, Head):
                if not piece.line.startswith(b"HTTP/1.1 200 "):
                    _give_up(f"answered: {data[:500]!r}")
            elif piece is None:
                self._over()
            else:
                self._first = self._first or time.perf_counter()
                if self._load.question.stream:
                    before = self._events.count
                    self._events.feed(piece)
                    self._load.heard(self._events.count - before)

    def _over(self) -> None:
        if self._events.count != self._load.question.events:
            _give_up(f"{self._events.count} events, wanted {self._load.question.events}")
        now = time.perf_counter()
        self._load.answered(self, now - self._sent, self._first - self._sent)


def _give_up(why: str) -> NoReturn:
    # In a callback an exception would only be logged, and the order never answered.
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        question = Question(order["endpoint"], order["stream"], order["tokens"])

        async def run() -> dict[str, Any]:
            load = Load(question, order.get("requests"), order["pids"])  # noqa: B023 (called at once)
            return await load.run(order["port"], order["concurrency"], order.get("seconds"))  # noqa: B023

        print("answer", json.dumps(uvloop.run(run())), flush=True)


if __name__ == "__main__":
    main()
