"""The metaserver's shell: sockets and timers around the pure `MetaserverState`.

    requests ROUTER ─▶ Asked      each tier's events ─▶ Heard      each tier's requests ─▶ ChunkAnswer
    events XPUB ◀─ NodeUp, NodeDown, Beat                          control ROUTER ─▶ drain, log level, dump

Everything runs on one event loop. It is ready when its sockets are bound: who lives it learns from the hellos, in a heartbeat.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from pathlib import Path
from typing import assert_never

from pegaflow.common import clock, faults, logs, machine
from pegaflow.common.bus.clone import JITTER_S
from pegaflow.common.bus.endpoint import check_endpoint
from pegaflow.common.bus.events import NODES, EventPublisher
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.fault_points import Point
from pegaflow.common.lifecycle import Lifecycle, StartError
from pegaflow.common.live_config import Options
from pegaflow.common.version import package_version
from pegaflow.common.wire.errors import LocalError
from pegaflow.common.wire.messages import operate
from pegaflow.common.wire.messages.catalogue import Hello
from pegaflow.common.wire.messages.facts import Facts
from pegaflow.services.control import commanded
from pegaflow.services.doors import Kept
from pegaflow.services.metaserver import events, fault_sites
from pegaflow.services.metaserver.commands import (
    AskChunk,
    Claim,
    Command,
    Connect,
    Disconnect,
    Drop,
    Fail,
    Log,
    Look,
    Publish,
    Put,
    Reply,
    Resign,
    Show,
)
from pegaflow.services.metaserver.config import MetaserverConfig
from pegaflow.services.metaserver.links import Links
from pegaflow.services.metaserver.redis_store import RedisStore
from pegaflow.services.metaserver.shared import SharedState
from pegaflow.services.metaserver.state import MetaserverState

TICK_S = 0.1
WORK_PAUSE_S = 0.005  # between two steps of about a millisecond

log = logs.get(__name__)


class MetaserverService:
    """One life of a metaserver. `start` binds and returns; `close` ends everything."""

    def __init__(
        self, config: MetaserverConfig, lifecycle: Lifecycle, loop: asyncio.AbstractEventLoop, options: Options = list
    ) -> None:
        self._options = options
        self._config, self._lifecycle, self._loop = config, lifecycle, loop
        self.epoch = clock.random_u64()
        self._started_at = clock.now()
        jitter = random.Random(self.epoch)
        is_shared = config.store != "memory"
        self.state = (SharedState if is_shared else MetaserverState)(self.epoch, lambda: jitter.uniform(0.0, JITTER_S))
        self._store: RedisStore | None = None
        self.ring = config.keyring()
        self._factory = SocketFactory(self.ring, plaintext_network=config.allow_plaintext_network)
        self._links = Links(self._factory, loop, self.handle)
        self._inbox: deque[events.Event] = deque()
        self._handling = False
        self._closed = False
        self.failed_commands = 0
        self._step = faults.around(self._take, fault_sites.of_event)
        self._do = faults.around(self._carry_out, fault_sites.of_command)
        self._ticker: asyncio.TimerHandle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._worker: asyncio.TimerHandle | None = None

    # --- start and end -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises `StartError` with `port_in_use` or `bad_endpoint`; call `close` then too."""
        config, factory, loop = self._config, self._factory, self._loop
        try:
            if config.store != "memory":
                self._store = RedisStore(config.store, config.store_prefix, self.epoch, self.handle, self._lifecycle)
            self._control = RpcServer(factory, loop, config.control, self.epoch, self._commanded, clock.now)
            self._events = EventPublisher(factory, loop, config.events, config.node, self.epoch)
            self._requests = RpcServer(factory, loop, config.requests, self.epoch, self._asked, clock.now)
        except LocalError as error:
            raise StartError(error.code, error.text) from None
        faults.reach(Point.METASERVER_START_AFTER_BIND)
        self.requests_endpoint = self._requests.endpoint
        self.events_endpoint = self._events.endpoint
        self.control_endpoint = self._control.endpoint
        if self._store is not None:
            self._store.start(loop)
        self._tick()
        self._lifecycle.set_ready()
        log.info("started", epoch=f"{self.epoch:016x}", requests=self.requests_endpoint, events=self.events_endpoint)

    def close(self) -> None:
        """Idempotent, and safe after a failed start. Locates that wait get no answer; their askers' deadlines speak for them."""
        self._closed = True
        for timer in (self._ticker, self._wake, self._worker):
            if timer is not None:
                timer.cancel()
        self._links.close()
        for name in ("_requests", "_events", "_control"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()
        self._factory.close()

    async def ended(self) -> None:
        """After `close`: the shared store's connections are gone too."""
        if self._store is not None:
            await self._store.close()

    # --- in ----------------------------------------------------------------------------------------------------------

    def handle(self, event: events.Event) -> None:
        """One event through the pure state, its commands carried out. What a command brings about is handled after it."""
        if self._closed:
            return
        if self._handling:
            self._inbox.append(event)
            return
        self._handling = True
        try:
            self._step(event)
            while self._inbox and not self._closed:
                self._step(self._inbox.popleft())
        finally:
            self._handling = False
        self._set_wake()
        if self._worker is None and self.state.busy and not self._closed:
            self._worker = self._loop.call_later(WORK_PAUSE_S, self._work)

    def _work(self) -> None:
        self._worker = None
        self.handle(events.Work())

    def _take(self, event: events.Event) -> None:
        for command in self.state.handle(event, clock.now()):
            try:
                self._do(command)
            except Exception:  # a message that cannot be sent must not cost others theirs
                self.failed_commands += 1
                log.exception("command_failed", command=type(command).__name__)
                if isinstance(command, Connect):
                    self.handle(events.ConnectFailed(command.node))

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._links.poke()
        self.handle(events.Tick())

    def _set_wake(self) -> None:
        """The tick is too coarse for the end of a wait."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        due = self.state.next_due()
        if due is not None and not self._closed:
            self._wake = self._loop.call_later(max(0.0, due - clock.now()), self.handle, events.Tick())

    def _asked(self, request: Request) -> None:
        message = request.message
        match message:
            case operate.Ping():
                request.reply(operate.Pong("metaserver", self._config.node, self.epoch, package_version(), self._uptime_ms()))
            case operate.Status() | operate.Dump():
                request.reply(self._document())
            case Facts():
                request.reply(self._facts())
            case Hello():
                try:
                    for endpoint in (message.requests, message.events, message.control):
                        check_endpoint(endpoint)
                except LocalError as error:
                    request.fail(error.code, error.text)
                else:
                    self.handle(events.Asked(request, message))
            case _:
                self.handle(events.Asked(request, message))

    def _commanded(self, request: Request) -> None:
        commanded(request, self._lifecycle, self._asked)

    # --- out ---------------------------------------------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        match command:
            case Reply(asker, message):
                asker.reply(message)
            case Fail(asker, code, text):
                asker.fail(code, text)
                log.warning("refused", request=asker.message.KIND, code=code, text=text)
            case Publish(message):
                self._events.publish(NODES, message)
            case Connect(node):
                try:
                    self._links.connect(command)
                except LocalError as error:
                    log.warning("cannot_connect", peer=node, code=error.code, text=error.text)
                    self.handle(events.ConnectFailed(node))
            case Disconnect(node):
                self._links.disconnect(node)
            case AskChunk():
                self._links.ask(command)
            case Log(event, fields):
                log.info(event, **fields)
            case Claim() | Put() | Show() | Drop() | Resign() | Look():
                assert self._store is not None
                self._store.do(command)
            case _:
                assert_never(command)

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def malformed(self) -> int:
        return self._requests.malformed + self._control.malformed + self._links.malformed

    @property
    def kept(self) -> Kept:
        """What was kept out."""
        return Kept(dict(self._factory.refused), self._requests.forbidden + self._control.forbidden)

    def _uptime_ms(self) -> int:
        return int((clock.now() - self._started_at) * 1e3)

    def _facts(self) -> operate.Document:
        told = machine.facts(machine.secret_files(self._config), ("numpy", "redis"))
        told |= {
            "options": self._options(),
            "endpoints": {"requests": self.requests_endpoint, "events": self.events_endpoint, "control": self.control_endpoint},
        }
        return operate.Document("metaserver", self._config.node, self.epoch, json.dumps(told))

    def _document(self) -> operate.Document:
        document = self.state.dump(clock.now())
        document.update(
            state=str(self._lifecycle.state),
            reasons=self._lifecycle.reasons(),
            uptime_ms=self._uptime_ms(),
            package=package_version(),
            events=self.events_endpoint,
            control=self.control_endpoint,
            failed_commands=self.failed_commands,
            malformed=self.malformed,
            **self.kept._asdict(),
            files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
        )
        return operate.Document("metaserver", self._config.node, self.epoch, json.dumps(document))
