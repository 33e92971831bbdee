"""A tier without pages: real sockets, a real catalogue, and a script instead of engines."""

from __future__ import annotations

import asyncio
import json

from pegaflow.common import clock
from pegaflow.common.bus.events import CATALOGUE, EventPublisher
from pegaflow.common.bus.rpc import Request, RpcClient, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.digest import DIGEST_BYTES, DIGEST_MOD, entry_digest
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.common.wire.messages.attach import SessionList, Sessions
from pegaflow.common.wire.messages.catalogue import GONE, PENDING, SEALED, Bye, CatalogueBeat, Delta, Hello, Sync, SyncChunk
from pegaflow.common.wire.messages.operate import Document, Ping, Pong, Status

SIZE = 4096
BEAT_S = 0.1


class ScriptedTier:
    """One life. `chunk_keys`: keys per chunk of a snapshot. It says hello and beats by itself;"""

    def __init__(
        self,
        factory: SocketFactory,
        loop: asyncio.AbstractEventLoop,
        node: str,
        epoch: int,
        metaserver: str,
        *,
        requests: str = "tcp://127.0.0.1:*",
        events: str = "tcp://127.0.0.1:*",
        chunk_keys: int = 2,
        hello: bool = True,
    ) -> None:
        self._loop, self.node, self.epoch, self._chunk_keys = loop, node, epoch, chunk_keys
        self.entries: dict[bytes, int] = {}
        self.syncs: list[Sync] = []
        self.sessions: SessionList | None = None
        self._walks: dict[int, tuple[int, list[tuple[bytes, int]]]] = {}
        self._requests = RpcServer(factory, loop, requests, epoch, self._asked, clock.now)
        try:
            self.publisher = EventPublisher(factory, loop, events, node, epoch)
        except LocalError:
            self._requests.close()
            raise
        self._factory = factory
        self._metaserver = RpcClient(factory, loop, metaserver)
        self._others: list[RpcClient] = []
        self._timer: asyncio.TimerHandle | None = None
        self.requests, self.events = self._requests.endpoint, self.publisher.endpoint
        if hello:
            self._beat()

    def also(self, metaserver: str) -> None:
        """Says hello to this one, too."""
        self._others.append(RpcClient(self._factory, self._loop, metaserver))

    def begin(self) -> None:
        """For one that was made without hello."""
        self._beat()

    def _beat(self) -> None:
        self._timer = self._loop.call_later(BEAT_S, self._beat)
        total = sum(entry_digest(key, state, 0, SIZE) for key, state in self.entries.items()) % DIGEST_MOD
        states = list(self.entries.values())
        digest = total.to_bytes(DIGEST_BYTES, "little")
        self.publisher.publish(CATALOGUE, CatalogueBeat(digest, states.count(PENDING), states.count(SEALED)))
        for metaserver in (self._metaserver, *self._others):
            metaserver.send(self.hello_message(), 5.0, lambda _: None)

    def hello_message(self) -> Hello:
        return Hello(self.node, self.epoch, self.requests, self.events, self.requests, "1")

    async def say_hello(self) -> bool:
        """Whether the metaserver's clone is whole. Raises `RemoteError` if it refuses."""
        answer = await self._metaserver.request(self.hello_message(), 20.0)
        return bool(answer.known)

    async def say_bye(self) -> None:
        self.stop_beating()
        await self._metaserver.request(Bye(self.node, self.epoch), 20.0)

    def change(self, changes: dict[bytes, int]) -> None:
        """Applies and publishes."""
        for key, state in changes.items():
            self.entries.pop(key, None)
            if state != GONE:
                self.entries[key] = state
        count = len(changes)
        self.publisher.publish(CATALOGUE, Delta(list(changes), bytes(changes.values()), bytes(count), u32s([SIZE] * count)))

    def _asked(self, request: Request) -> None:
        match request.message:
            case Sync():
                self._sync(request, request.message)
            case Sessions() if self.sessions is not None:
                request.reply(self.sessions)
            case Ping():
                request.reply(Pong("tier", self.node, self.epoch, "1", 1234))
            case Status():
                document = {
                    "state": "ready",
                    "pool_bytes": 1 << 30,
                    "free_bytes": 1 << 29,
                    "pages": {"sealed": 3},
                    "sessions": [],
                }
                request.reply(Document("tier", self.node, self.epoch, json.dumps(document)))
            case other:
                request.fail(ErrorCode.UNSUPPORTED, other.KIND)

    def _sync(self, request: Request, sync: Sync) -> None:
        self.syncs.append(sync)
        if sync.chunk == 0:
            self._walks[sync.sync_id] = (self.publisher.head(CATALOGUE), list(self.entries.items()))
        if sync.sync_id not in self._walks:
            request.fail(ErrorCode.STALE_SYNC, "unknown")
            return
        head, rows = self._walks[sync.sync_id]
        chunks = max(1, -(-len(rows) // self._chunk_keys))
        mine = rows[sync.chunk * self._chunk_keys : (sync.chunk + 1) * self._chunk_keys]
        keys, states = [key for key, _ in mine], bytes(state for _, state in mine)
        columns = (keys, states, bytes(len(keys)), u32s([SIZE] * len(keys)))
        request.reply(SyncChunk(sync.clone_epoch, sync.sync_id, sync.chunk, chunks, head, *columns))

    def stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Like a kill: no goodbye."""
        self.stop_beating()
        for metaserver in (self._metaserver, *self._others):
            metaserver.close()
        self._requests.close()
        self.publisher.close()
