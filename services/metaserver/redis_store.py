"""A catalogue in Redis or Valkey, shared by metaservers: carries out what `SharedState` asks for.

    <prefix>:writer:<node>     who writes it, for CLAIM_MS since its last claim
    <prefix>:record:<node>     "<epoch> <generation>" that readers look at
    <prefix>:gen:<generation>  hash: key → entry
    <prefix>:changes           channel: keys that were written, nodes whose record was

Everything has a time to live that its writer renews, so what a dead one leaves goes by itself. Three connections: writes, in
order; looks, as many together as have come; the channel. The scripts find a generation's key by its record, so a cluster of Redis
will not do; one primary with replicas for fail-over will.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgpack
from pegaflow.common import logs
from pegaflow.common.bus.generation import entry_state
from pegaflow.common.lifecycle import Lifecycle, StartError
from pegaflow.common.secrets import without_secrets
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import GONE
from pegaflow.services.metaserver import events
from pegaflow.services.metaserver.commands import Claim, Drop, Look, Put, Resign, Show, StoreCommand

CLAIM_MS: Final = 2500
RECORD_MS: Final = 20_000
GENERATION_MS: Final = 30_000
ANSWER_S: Final = 2.0
RETRY_S: Final = 0.25
MAX_WRITES: Final = 20_000
_AT_ONCE: Final = 256

_CLAIM: Final = """
local writer = redis.call('GET', KEYS[1])
local mine = not writer or writer == ARGV[1]
local record = redis.call('GET', KEYS[2])
local keys = 0
if record then keys = redis.call('HLEN', KEYS[3] .. string.match(record, ' (.*)$')) end
if mine then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  if record then
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
    redis.call('PEXPIRE', KEYS[3] .. string.match(record, ' (.*)$'), ARGV[4])
  end
  for i = 5, #ARGV do redis.call('PEXPIRE', KEYS[3] .. ARGV[i], ARGV[4]) end
end
return {mine and 1 or 0, writer == ARGV[1] and 1 or 0, record or '', keys}
"""
_SHOW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('PUBLISH', KEYS[3], ARGV[4])
return 1
"""
_RESIGN: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local record = redis.call('GET', KEYS[2])
if record and string.match(record, '^[^ ]*') == ARGV[2] then
  redis.call('DEL', KEYS[2])
  redis.call('PUBLISH', KEYS[3], ARGV[3])
end
return 1
"""

log = logs.get(__name__)


class RedisStore:
    """Owns its connections and tasks. Events go to `handle` on the loop. Raises `StartError`: `redis_missing`, `bad_config`."""

    def __init__(self, url: str, prefix: str, epoch: int, handle: Callable[[events.Event], None], lifecycle: Lifecycle) -> None:
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import RedisError
        except ImportError as error:
            raise StartError("redis_missing", f"{error}: install pegaflow[redis], or use --store memory") from None

        def client(**options: Any) -> Any:
            return Redis.from_url(url, socket_connect_timeout=ANSWER_S, retry=Retry(NoBackoff(), 0), **options)

        try:
            self._writer, self._reader, self._ear = client(socket_timeout=ANSWER_S), client(socket_timeout=ANSWER_S), client()
        except ValueError as error:
            raise StartError("bad_config", f"store {without_secrets(url)!r}: {without_secrets(str(error))}") from None
        self._failures: tuple[type[Exception], ...] = (RedisError, OSError, asyncio.TimeoutError)
        self._prefix, self._me = prefix, b"%016x" % epoch
        self._handle, self._lifecycle = handle, lifecycle
        self._channel = f"{prefix}:changes"
        self._writes: deque[StoreCommand] = deque()
        self._looks: list[Look] = []
        self._claims: dict[str, Claim] = {}
        self._to_write, self._to_look = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._away = self._closed = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = [loop.create_task(run()) for run in (self._write_on, self._look_on, self._listen_on)]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            task.get_loop().call_exception_handler({"message": "a task of the store ended", "exception": task.exception()})

    def do(self, command: StoreCommand) -> None:
        match command:
            case Look():
                self._looks.append(command)
                self._to_look.set()
            case _:
                if isinstance(command, Claim):
                    self._claims[command.node] = command
                elif isinstance(command, Resign):
                    self._claims.pop(command.node, None)
                self._writes.append(command)
                self._to_write.set()

    async def close(self) -> None:
        """Idempotent. Looks that are open get no answer."""
        self._closed = True  # the client library was seen to turn a cancellation into a time-out
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in (self._writer, self._reader, self._ear):
            await client.aclose()

    # --- writes ------------------------------------------------------------------------------------------------------

    async def _write_on(self) -> None:
        while not self._closed:
            await self._to_write.wait()
            self._to_write.clear()
            while self._writes:
                if len(self._writes) > MAX_WRITES:
                    await self._come_back(f"{len(self._writes)} writes behind")
                    continue
                batch = [self._writes.popleft() for _ in range(min(_AT_ONCE, len(self._writes)))]
                try:
                    answers = await self._write(batch)
                except self._failures as error:
                    await self._come_back(f"{type(error).__name__}: {error}")
                    continue
                for claim, answer in answers:
                    self._claimed(claim, answer)

    async def _write(self, batch: list[StoreCommand]) -> list[tuple[Claim, Any]]:
        pipe = self._writer.pipeline(transaction=False)
        claims: list[tuple[int, Claim]] = []
        for command in batch:
            match command:
                case Claim(node, _, generations):
                    claims.append((len(pipe), command))
                    times = (CLAIM_MS, RECORD_MS, GENERATION_MS)
                    pipe.eval(_CLAIM, 3, *self._names(node), f"{self._prefix}:gen:", self._me, *times, *generations)
                case Put():
                    self._put(pipe, command)
                case Show(node, epoch, generation):
                    record, told = f"{epoch:x} {generation}", _told(node)
                    pipe.eval(_SHOW, 3, *self._names(node), self._channel, self._me, record, RECORD_MS, told)
                case Resign(node, epoch):
                    pipe.eval(_RESIGN, 3, *self._names(node), self._channel, self._me, f"{epoch:x}", _told(node))
                case Drop(generation):
                    pipe.unlink(f"{self._prefix}:gen:{generation}")
        answers = await pipe.execute()
        return [(claim, answers[at]) for at, claim in claims]

    def _names(self, node: str) -> tuple[str, str]:
        return f"{self._prefix}:writer:{node}", f"{self._prefix}:record:{node}"

    def _put(self, pipe: Any, put: Put) -> None:
        name = f"{self._prefix}:gen:{put.generation}"
        rows = list(zip(put.keys, put.entries, strict=True))
        kept = {key: entry for key, entry in rows if entry_state(entry) != GONE}
        gone = [key for key, entry in rows if entry_state(entry) == GONE]
        if gone:
            pipe.hdel(name, *gone)
        if kept:
            pipe.hset(name, mapping=kept)
            pipe.pexpire(name, GENERATION_MS)
        if put.tell:
            pipe.publish(self._channel, msgpack.packb(list(put.keys)))

    def _claimed(self, claim: Claim, answer: Any) -> None:
        mine, renewed, record, keys = answer
        epoch, _, generation = record.decode().partition(" ")
        seen = events.Record(int(epoch, 16), generation, keys) if record else None
        self._handle(events.Claimed(claim.node, claim.epoch, bool(mine), bool(renewed), seen))

    async def _come_back(self, why: str) -> None:
        """What is not written is lost; the state hears of it once the store answers again, and clones anew."""
        self._away = True
        self._lifecycle.set_reason(ErrorCode.STORE_UNREACHABLE, why)
        log.warning("store_away", text=why)
        while not self._closed:
            self._writes.clear()
            try:
                await self._writer.ping()
                break
            except self._failures:
                await asyncio.sleep(RETRY_S)
        self._away = False
        self._lifecycle.clear_reason(ErrorCode.STORE_UNREACHABLE)
        log.info("store_back")
        self._handle(events.StoreBack())

    # --- looks -------------------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        while not self._closed:
            await self._to_look.wait()
            self._to_look.clear()
            looks, self._looks = self._looks, []
            answers: list[Any] | RemoteError
            try:
                if self._away:
                    raise ConnectionError("it does not answer")
                pipe = self._reader.pipeline(transaction=False)
                for look in looks:
                    for generation in look.generations:
                        pipe.hmget(f"{self._prefix}:gen:{generation}", look.keys)
                answers = await pipe.execute()
            except self._failures as error:
                answers = RemoteError(ErrorCode.STORE_UNREACHABLE, f"the catalogue's store: {type(error).__name__}: {error}")
            at = 0
            for look in looks:
                if isinstance(answers, RemoteError):
                    self._handle(events.Looked(look.ticket, answers))
                else:
                    self._handle(events.Looked(look.ticket, answers[at : at + len(look.generations)]))
                    at += len(look.generations)

    # --- the channel -------------------------------------------------------------------------------------------------

    async def _listen_on(self) -> None:
        while not self._closed:
            channel = self._ear.pubsub()
            try:
                await channel.subscribe(self._channel)
                while not self._closed:
                    message = await channel.get_message(timeout=1.0)
                    if message is None:
                        await channel.ping()
                    elif message["type"] == "subscribe":
                        self._handle(events.Changed(None))  # something may have been told while nobody listened here
                    elif message["type"] == "message":
                        self._heard(message["data"])
            except self._failures as error:
                log.warning("store_channel_away", text=f"{type(error).__name__}: {error}")
                await asyncio.sleep(RETRY_S)
            finally:
                await channel.aclose()

    def _heard(self, data: bytes) -> None:
        told = msgpack.unpackb(data)
        if isinstance(told, str):
            claim = self._claims.get(told)
            if claim is not None:
                self.do(claim)  # the answer shows the new record
        else:
            self._handle(events.Changed(told))


def _told(node: str) -> bytes:
    packed: bytes = msgpack.packb(node)
    return packed
