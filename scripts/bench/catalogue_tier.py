"""A tier that has a catalogue and nothing else, in a process of its own, told what to publish by lines on stdin.

    catalogue_tier.py NODE METASERVER           ready ▶ stdout, once the metaserver's copy is whole
    stdin:  {"do": "hold", "chunks": 245, "first": 0}       catalogue_client.chunk(first) … are sealed; a snapshot tells it
            {"do": "prepare", "from": 0, "count": 8192}             the keys that are meant from now on; not timed
            {"do": "put" | "remove", "keys": 64}                    deltas, as fast as they are applied ▶ seconds
            {"do": "bye"}

It keeps no keys but prepared ones: they follow from their number.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from catalogue_client import WINDOW, chunk, prepared
from pegaflow.common import clock
from pegaflow.common.bus.events import CATALOGUE, EventPublisher
from pegaflow.common.bus.rpc import Request, RpcClient, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode
from pegaflow.common.wire.messages.catalogue import GONE, SEALED, Bye, CatalogueBeat, Delta, Hello, Locate, Sync, SyncChunk

SIZE = 1 << 20


class Tier:
    def __init__(self, node: str, metaserver: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._node = loop, node
        self._factory = SocketFactory()
        self._epoch = clock.random_u64()
        self._first = self._chunks = 0
        self._requests = RpcServer(self._factory, loop, "tcp://127.0.0.1:*", self._epoch, self._asked, clock.now)
        self._events = EventPublisher(self._factory, loop, "tcp://127.0.0.1:*", node, self._epoch)
        self._metaserver = RpcClient(self._factory, loop, metaserver)

    def _asked(self, request: Request) -> None:
        message = request.message
        if not isinstance(message, Sync):
            request.fail(ErrorCode.UNSUPPORTED, message.KIND)
            return
        keys = chunk(self._first + message.chunk) if self._chunks else []
        count = len(keys)
        columns = (keys, bytes([SEALED]) * count, bytes(count), u32s([SIZE]) * count)
        head = self._events.head(CATALOGUE)
        request.reply(SyncChunk(message.clone_epoch, message.sync_id, message.chunk, max(1, self._chunks), head, *columns))

    async def beat(self) -> None:
        """Hellos only; a beat with a digest would cost a second per million keys to keep."""
        while True:
            await self.hello()
            await asyncio.sleep(0.5)

    async def hello(self) -> bool:
        at = (self._requests.endpoint, self._events.endpoint, self._requests.endpoint)
        answer = await self._metaserver.request(Hello(self._node, self._epoch, *at, "bench"), 30.0)
        return bool(answer.known)

    async def hold(self, chunks: int, first: int) -> dict[str, Any]:
        """Makes the metaserver take a new snapshot, by a number that it has not seen the ones before of."""
        self._first, self._chunks = first, chunks
        began = time.perf_counter()
        self._events._heads[CATALOGUE] += 1
        self._events.publish(CATALOGUE, CatalogueBeat(bytes(16), 0, 0))
        last = chunk(first + chunks - 1)[-1:]
        while not (await self._locate(last, 0)):
            await asyncio.sleep(0.02)
        return {"seconds": time.perf_counter() - began}

    async def _locate(self, keys: list[bytes], wait_ms: int) -> bool:
        answer = await self._metaserver.request(Locate("bench", keys, wait_ms, wait_ms > 0), 60.0)
        return SEALED in answer.states

    async def change(self, what: str, keys: int, every: list[bytes]) -> dict[str, Any]:
        state = SEALED if what == "put" else GONE
        began = time.perf_counter()
        for sent, at in enumerate(range(0, len(every), keys)):
            part = every[at : at + keys]
            self._events.publish(CATALOGUE, Delta(part, bytes([state]) * len(part), bytes(len(part)), u32s([SIZE]) * len(part)))
            if sent % WINDOW == WINDOW - 1:
                await self._applied(every[at], state)
        await self._applied(every[-1], state)
        return {"seconds": time.perf_counter() - began}

    async def _applied(self, key: bytes, state: int) -> None:
        if state == SEALED:
            while not await self._locate([key], 30_000):
                pass
        else:
            while await self._locate([key], 0):
                await asyncio.sleep(0.0005)

    async def bye(self) -> dict[str, Any]:
        await self._metaserver.request(Bye(self._node, self._epoch), 30.0)
        return {}


async def serve(node: str, metaserver: str) -> None:
    loop = asyncio.get_running_loop()
    tier = Tier(node, metaserver, loop)
    while not await tier.hello():
        await asyncio.sleep(0.01)
    beats = loop.create_task(tier.beat())
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    every: list[bytes] = []
    print("ready", flush=True)
    while line := await reader.readline():
        order = json.loads(line)
        answer: dict[str, Any] = {}
        match order["do"]:
            case "hold":
                answer = await tier.hold(order["chunks"], order["first"])
            case "prepare":
                every = prepared(order["from"], order["count"])
            case "put" | "remove" as what:
                answer = await tier.change(what, order["keys"], every)
            case "bye":
                beats.cancel()
                answer = await tier.bye()
            case other:
                raise SystemExit(f"what is {other}?")
        print("answer", json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
