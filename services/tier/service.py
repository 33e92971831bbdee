"""The tier's shell: sockets, files, threads and the mover around the pure `TierState`.

    requests ROUTER ─▶ Asked          intents SUB ─▶ Published        lock probes ─▶ Proven
    hasher threads  ─▶ Hashed         mover       ─▶ ReadEnded        metaserver, tiers ─▶ LocateAnswer, PinAnswer

Everything runs on one event loop except checksums, the allocation of the pool and the mover's process.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

from pegaflow.common import clock, faults, logs
from pegaflow.common.bus.events import EventPublisher, session_topic
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.fault_points import Point
from pegaflow.common.lifecycle import Lifecycle, StartError
from pegaflow.common.live_config import Options
from pegaflow.common.version import package_version
from pegaflow.common.wire.envelope import PublicationHeader, open_envelope
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError, WireError
from pegaflow.common.wire.messages import catalogue, operate
from pegaflow.common.wire.messages.attach import Attach, Sessions
from pegaflow.common.wire.messages.facts import DiskSpeed, Facts
from pegaflow.services.control import commanded
from pegaflow.services.doors import Kept
from pegaflow.services.tier import events, fault_sites
from pegaflow.services.tier.carrier import Carrier
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.facts import engines, status, tell
from pegaflow.services.tier.node_rest import NodeRest
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.place import Place
from pegaflow.services.tier.pool_life import READY_S, PoolLife
from pegaflow.services.tier.probes import PROBE_S, Probes
from pegaflow.services.tier.retune import retune
from pegaflow.services.tier.state import TierState
from pegaflow.services.tier.stray_locks import STRAY_S, StrayLocks

TICK_S = 0.02
HELLO_S = 0.5
BYE_S = 0.5
LEAVE_S = 1.0

log = logs.get(__name__)


class TierService:
    """One life of a tier. `start` binds, makes the pool and returns; `close` ends everything in order."""

    _carrier: Carrier
    _events: EventPublisher
    requests_endpoint: str

    def __init__(
        self, config: TierConfig, lifecycle: Lifecycle, loop: asyncio.AbstractEventLoop, options: Options = list
    ) -> None:
        """`options`: the configuration in use, for whoever asks."""
        self._options = options
        self._serving = False
        self._config, self._lifecycle, self._loop = config, lifecycle, loop
        self.epoch = clock.random_u64()
        self._started_at = clock.now()
        self.ring = config.keyring()
        self._factory = SocketFactory(self.ring, plaintext_network=config.allow_plaintext_network)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tick_at = 0.0
        self._leave_by = 0.0
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._life = PoolLife(config, lifecycle, lambda event: self._result(event))
        self.malformed = 0
        self.failed_commands = 0
        self.handle = faults.around(self._handle, fault_sites.of_event)

    # --- start and end -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `StartError` with `pool_busy`, `pool_too_large`, `port_in_use`, `bad_endpoint` or the mover's code."""
        config = self._config
        try:
            await self._life.open(self.epoch)
            faults.reach(Point.TIER_START_AFTER_POOL)
            self._bind()
        except LocalError as error:
            raise StartError(error.code, error.text) from None
        self._life.scan_locks()
        faults.reach(Point.TIER_START_AFTER_SCAN)
        self._probes = Probes(config.sessions_dir, self._dead, clock.now)
        self._carrier = carrier = Carrier(
            config, self._loop, self._factory, self.epoch, self._life, self._probes, self._events, self._result
        )
        self._do = faults.around(carrier.carry_out, fault_sites.of_command)
        self._metaservers = carrier.metaservers
        carrier.requests_endpoint = self.requests_endpoint
        disk = await carrier.open_disk()
        place = Place(
            config.node,
            self.epoch,
            str(self._life.pool.path),
            self._life.pool.size,
            str(self._life.pool.table_path),
            config.ipc("intents"),
            config.ipc("events"),
            config.ipc("control"),
        )
        self.state = TierState(
            place,
            os.urandom,
            session_topic,
            metaserver=bool(self._metaservers),
            fingerprint=bytes.fromhex(config.fingerprint),
            space=config.space,
            remains=await self._life.remains(),
            verify_every=config.verify_every,
            scrub_rate=config.scrub_rate,
            history=config.history,
            disk=disk,
        )
        self._rest = NodeRest(config.runtime_dir, self.state.draining, self._lifecycle, self._hello)
        self._rest.resume(can_hand_over=bool(self._metaservers))
        self._tasks = [self._loop.create_task(carrier.load_disk())]
        await asyncio.wait(self._tasks, timeout=READY_S)
        if config.mover:
            await carrier.start_mover(self._agent)
        faults.reach(Point.TIER_START_AFTER_MOVER)
        self._serving = True
        self._tick()
        self._every("probe", PROBE_S, self._look)
        self._every("hello", HELLO_S, self._hello)
        strays = StrayLocks(self._config.sessions_dir, lambda: self._probes.names() | self._life.watched())
        self._every("strays", STRAY_S, strays.look)
        self._life.start(self.state.adoption)
        log.info("started", epoch=f"{self.epoch:016x}", requests=self.requests_endpoint, pool_bytes=self._life.pool.size)

    def _bind(self) -> None:
        config, factory, loop = self._config, self._factory, self._loop
        config.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        config.sessions_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._requests = RpcServer(factory, loop, config.ipc("requests"), self.epoch, self._asked, clock.now)
        self._control = RpcServer(factory, loop, config.ipc("control"), self.epoch, self._commanded, clock.now)
        self._events = EventPublisher(factory, loop, config.ipc("events"), config.node, self.epoch)
        sock, _ = factory.bound_sub(config.ipc("intents"))
        self._intents = Port(sock, loop, self._published)
        self.requests_endpoint = self._advertise(self._requests.bind, config.requests, config.ipc("requests"))
        self.events_endpoint = self._advertise(self._events.bind, config.events, config.ipc("events"))
        self.control_endpoint = self._advertise(self._control.bind, config.control, config.ipc("control"))

    def _advertise(self, bind: Callable[[str], str], endpoint: str, local: str) -> str:
        if not endpoint:
            return local
        bound = bind(endpoint)
        if not self._config.advertise_host:
            return bound
        return f"tcp://{self._config.advertise_host}:{bound.rpartition(':')[2]}"

    def _agent(self, agent: Agent) -> None:
        self.state.agent = agent

    def _look(self) -> None:
        self._probes.look()
        self._life.look()

    def _tick(self) -> None:
        self._arm_tick(TICK_S)  # whatever this tick does, there is another one
        self.handle(events.Tick())
        self._arm_tick(max(TICK_S, self.state.rest(clock.now())))

    def _arm_tick(self, pause_s: float) -> None:
        if (timer := self._timers.get("tick")) is not None:
            timer.cancel()
        if not self._closing:
            self._tick_at = clock.now() + pause_s
            self._timers["tick"] = self._loop.call_later(pause_s, self._tick)

    def _every(self, name: str, pause_s: float, call: Callable[[], None]) -> None:
        def again() -> None:
            self._timers[name] = self._loop.call_later(pause_s, again)
            call()

        self._timers[name] = self._loop.call_soon(again)  # type: ignore[assignment]

    async def drain(self) -> None:
        """No new sessions; waits for open loads and saves up to the drain timeout, then says goodbye."""
        self.state.draining.leaving = True
        self._hello()
        until = self._leave_by = self._loop.time() + self._config.drain_timeout
        while self._loop.time() < until and self._busy():
            await asyncio.sleep(TICK_S)  # the tick is what moves leases and fetches on
        self._life.store_ages(self.state.pages.index.values())
        if (timer := self._timers.pop("hello", None)) is not None:
            timer.cancel()  # behind the goodbye it would be refused, as that of a life that was left behind
        faults.reach(Point.TIER_DRAIN_BEFORE_BYE)
        self._metaservers.tell(catalogue.Bye(self._config.node, self.epoch))
        until = self._loop.time() + BYE_S
        while self._loop.time() < until and self._metaservers.in_flight:
            await asyncio.sleep(0.005)  # a goodbye that dies in the socket leaves the node listed until it counts as dead
        faults.reach(Point.TIER_DRAIN_AFTER_BYE)

    def _busy(self) -> bool:
        state = self.state
        loading = state.leases.under_load
        pins = any(lease.session == 0 for lease in state.leases.open.values())
        return bool(loading or pins or state.lookups.open or state.saves.hashing)

    async def close(self) -> None:
        """Ends timers, the disk, the mover, threads, sockets and files, in this order. Safe after a failed start.

        A disk that does not answer is waited for as long as the drain may take, and at least LEAVE_S; then it is left behind.
        """
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        carrier: Carrier | None = getattr(self, "_carrier", None)
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("disk_not_loaded", exc_info=ended)
        if carrier is not None:
            await carrier.stop_disk(max(LEAVE_S, self._leave_by - self._loop.time()))
        await self._life.stop()
        faults.reach(Point.TIER_CLOSE_BEFORE_MOVER)
        if carrier is not None:
            await carrier.stop_mover()
        for name in ("_carrier", "_probes", "_requests", "_control", "_events", "_intents"):
            part = getattr(self, name, None)
            if part is not None:
                part.close()
        self._factory.close()
        faults.reach(Point.TIER_CLOSE_BEFORE_FILES)
        self._life.close(in_use=carrier is not None and carrier.disk_hangs)

    def retune(self, config: TierConfig, changed: frozenset[str]) -> None:
        """Takes what a reload has changed into use. Raises ValueError before the start is over."""
        if not self._serving:
            raise ValueError("the tier is starting")
        self._config = config
        retune(self.state, config)

    # --- in ----------------------------------------------------------------------------------------------------------

    def _handle(self, event: events.Event) -> None:
        """One event through the pure tier, its commands carried out. Called as `handle`, between its fault points."""
        if self._closing:
            return
        now = clock.now()
        for command in self.state.handle(event, now):
            try:
                self._do(command)
            except Exception:  # a message that cannot be sent must not cost others theirs
                self.failed_commands += 1
                log.exception("command_failed", command=type(command).__name__)
                self._carrier.failed(command)
        if self._tick_at - now > TICK_S and self.state.rest(now) <= 0:
            self._arm_tick(TICK_S)  # somebody has come who waits for it

    def _result(self, event: events.Event) -> None:
        """An event that is told once and for which slots are held: taken in again if that failed. Twice it says nothing new."""
        try:
            self.handle(event)
        except Exception:
            log.exception("result_failed", result=type(event).__name__)
            self.handle(event)

    def _asked(self, request: Request) -> None:
        message = request.message
        if not self._serving:
            request.fail(ErrorCode.NOT_READY, "the tier is starting")
            return
        match message:
            case operate.Ping():
                uptime_ms = int((clock.now() - self._started_at) * 1e3)
                request.reply(operate.Pong("tier", self._config.node, self.epoch, package_version(), uptime_ms))
            case operate.Status() | operate.Dump():
                request.reply(self._document())
            case Facts():
                self._tell_facts(request)
            case Sessions():
                request.reply(self.state.sessions.listed())
            case Attach():
                self._attach(request, message)
            case _:
                self.handle(events.Asked(request, message))

    def _attach(self, request: Request, message: Attach) -> None:
        if not self._life.pool.allocated:
            request.fail(ErrorCode.NOT_READY, "the pool has no memory yet")
            return
        try:
            probe = self._probes.open(message.lock_name, message.nonce, message.pid, message.gpu)
        except RemoteError as error:
            request.fail(error.code, error.text)
            return
        self._carrier.probing = probe
        self.handle(events.Asked(request, message))
        if self._carrier.probing is not None:  # refused
            probe.close()
            self._carrier.probing = None
        else:
            self._life.attached(message.nonce)

    def _commanded(self, request: Request) -> None:
        match request.message:
            case DiskSpeed(size):
                self._carrier.answer(self._carrier.measure_disk(request, size))
            case operate.NodeDrain() | operate.NodeUndrain() if not self._serving:
                request.fail(ErrorCode.NOT_READY, "the tier is starting")
            case operate.NodeDrain() | operate.NodeUndrain():
                self._rest.commanded(request)
            case _:
                commanded(request, self._lifecycle, self._asked)

    def _published(self, frames: list[bytes]) -> None:
        if not self._serving:
            return
        try:
            envelope = open_envelope(frames, PublicationHeader)
            message = envelope.message()
        except WireError as error:
            self.malformed += 1
            log.warning("malformed_publication", code=error.code, text=error.text)
            return
        header: PublicationHeader = envelope.header
        self.handle(events.Published(header.session, header.member, header.seq, header.token, message))

    def _dead(self, session: int, member: int) -> None:
        self.handle(events.Proven(session, member))

    def _hello(self) -> None:
        if self._closing:
            return
        faults.reach(Point.TIER_HELLO_BEFORE_SENT)
        config = self._config
        hello = catalogue.Hello(
            config.node,
            self.epoch,
            self.requests_endpoint,
            self.events_endpoint,
            self.control_endpoint,
            package_version(),
            self.state.draining.on,
            *self.state.leases.load(),
        )
        self._metaservers.tell(hello)

    # --- looking -----------------------------------------------------------------------------------------------------

    def mover_counts(self) -> dict[str, int] | None:
        """For metrics; None without a mover."""
        return self._carrier.mover_counts()

    def metaserver_counts(self) -> tuple[int, int]:
        """For metrics: how many there are, and how many know this node."""
        return self._metaservers.counts

    def _endpoints(self) -> dict[str, str]:
        return {"requests": self.requests_endpoint, "events": self.events_endpoint, "control": self.control_endpoint}

    def _tell_facts(self, request: Request) -> None:
        more = {"engines": engines(self.state.sessions), "options": self._options(), "endpoints": self._endpoints()}
        pids = self._carrier.mover_pids()
        self._carrier.answer(tell(request, self._config, pids, lambda told: self._told(told | more)))

    @property
    def kept(self) -> Kept:
        """What was kept out."""
        return Kept(dict(self._factory.refused), self._requests.forbidden + self._control.forbidden)

    def _document(self) -> operate.Document:
        dump = status(self.state, self._lifecycle, self._carrier, int((clock.now() - self._started_at) * 1e3))
        dump.update(
            self._endpoints(),
            pool_bytes=self._life.pool.size,
            members=len(self._probes),
            metaserver_known=self._metaservers.known,
            failed_commands=self.failed_commands,
            malformed=self.malformed + self._requests.malformed + self._control.malformed,
            **self.kept._asdict(),
        )
        return self._told(dump)

    def _told(self, told: dict[str, Any]) -> operate.Document:
        return operate.Document("tier", self._config.node, self.epoch, json.dumps(told))
