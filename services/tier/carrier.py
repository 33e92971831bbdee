"""Carries out what the pure tier asks for: checksums, READs, disk jobs, questions to metaservers and other tiers, answers.

Owns the hasher's and the disk's threads, the mover's process, and the links to other nodes.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, assert_never

from pegaflow.common import clock, logs
from pegaflow.common.bus.events import EventPublisher
from pegaflow.common.bus.rpc import Request
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.lifecycle import StartError
from pegaflow.common.locks import LockProbe
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError
from pegaflow.common.wire.messages import catalogue, transfer
from pegaflow.common.wire.messages.attach import Attached
from pegaflow.common.wire.messages.operate import Document
from pegaflow.services.tier import events
from pegaflow.services.tier.commands import (
    AskNodes,
    CloseTopic,
    Command,
    Cut,
    DiskDrop,
    DiskGiveUp,
    DiskRead,
    DiskWrite,
    Fail,
    Forget,
    ForgetPeer,
    GiveUp,
    Hash,
    Locate,
    Log,
    Offer,
    OpenTopic,
    PinAt,
    Publish,
    Read,
    ReadersUntil,
    Reply,
    Resume,
    Table,
    UnpinAt,
)
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.disk.cipher import load_cipher
from pegaflow.services.tier.disk.files import DiskFiles
from pegaflow.services.tier.disk.level import DiskOptions
from pegaflow.services.tier.disk.speed import measure
from pegaflow.services.tier.disk.threads import DiskThreads, apart
from pegaflow.services.tier.hasher import Hasher
from pegaflow.services.tier.peers import Metaservers, Peers, in_turn
from pegaflow.services.tier.pins import Agent
from pegaflow.services.tier.pool_life import PoolLife
from pegaflow.services.tier.probes import Probes

PIN_BUDGET_S = 1.0
NODES_BUDGET_S = 1.0
DISK_OPEN_S = 10.0
FOUND_RECORDS = 1024  # of a segment of an earlier life, told in one event

log = logs.get(__name__)


class Carrier:
    """`result` takes what jobs and answers say, on the loop, once for each command that has a result."""

    def __init__(
        self,
        config: TierConfig,
        loop: asyncio.AbstractEventLoop,
        factory: SocketFactory,
        epoch: int,
        life: PoolLife,
        probes: Probes,
        publisher: EventPublisher,
        result: Callable[[events.Event], None],
    ) -> None:
        self._config, self._loop, self._epoch = config, loop, epoch
        self._life, self._probes, self._publisher, self._result = life, probes, publisher, result
        self._hasher = Hasher(life.pool.memory, loop, config.hash_threads)
        self.metaservers = Metaservers(factory, loop, in_turn(config.metaserver, config.node))
        self._peers = Peers(factory, loop)
        self._mover: Any = None
        self._disk: DiskThreads | None = None
        self._found: list[int] = []
        self.requests_endpoint = ""
        """Where other tiers reach this one; set once it is bound."""
        self._measuring = False
        self._answers: set[asyncio.Task[None]] = set()
        self.disk_hangs = False
        """A call to the disk has not come back: it may still touch the pool."""
        self.probing: LockProbe | None = None
        """Of the process whose attach is being answered; None once it is kept."""

    # --- start and end -----------------------------------------------------------------------------------------------

    async def start_mover(self, ready: Callable[[Agent], None]) -> None:
        """`ready` is told of the agent, now and whenever there is another one. Raises `StartError`."""
        try:
            from pegaflow.services.tier.mover.pool import MoverFailed, MoverPool
        except ImportError as error:
            raise StartError("nixl_missing", f"{error}: install pegaflow[tier], or start with --no-mover") from None
        config = self._config
        ucx = {"UCX_NET_DEVICES": config.ucx_net_devices, "UCX_TLS": config.ucx_tls}
        name = f"{config.node}/{self._epoch:016x}"
        mover = self._mover = MoverPool(
            config.runtime_dir,
            config.node,
            self._life.pool.path,
            self._life.pool.size,
            on_done=lambda job, outcome, text: self._result(events.ReadEnded(job, outcome)),
            on_metadata=lambda metadata: ready(Agent(name, metadata, mover.base)),
            ucx={name: value for name, value in ucx.items() if value},
        )
        try:
            await mover.start()
        except MoverFailed as error:
            raise StartError(error.code, str(error)) from None
        self._life.tell_backed(mover.backed)
        ready(Agent(name, mover.metadata, mover.base))

    async def open_disk(self) -> DiskOptions:
        """Takes the disk directory into use, if there is one. Raises `StartError`."""
        config = self._config
        if not config.disk_dir:
            return DiskOptions()
        folder, memory = Path(config.disk_dir) / config.node, self._life.pool.memory
        cipher = load_cipher(config.disk_key_file)
        self.disk_hangs = True  # until it has answered
        try:
            files = await asyncio.wait_for(apart(lambda: DiskFiles(folder, memory, cipher)), DISK_OPEN_S)
        except TimeoutError:
            raise StartError(ErrorCode.DISK_REFUSED, f"{folder}: no answer within {DISK_OPEN_S:g} s") from None
        except LocalError as error:
            self.disk_hangs = False
            raise StartError(error.code, error.text) from None
        self.disk_hangs = False
        log.info("disk", direct=files.direct, segments=len(files.found), foreign=files.foreign, encrypted=cipher is not None)
        self._found = files.found
        self._disk = DiskThreads(
            files,
            self._loop,
            config.disk_threads,
            lambda job, code: self._result(events.DiskWritten(job, code)),
            lambda job, found: self._result(events.DiskReadEnded(job, found)),
        )
        return DiskOptions(config.disk_size, config.disk_queue, max(files.found, default=0), config.keep_share)

    async def load_disk(self) -> None:
        """Takes the segments of earlier lives over, one by one; what is in them is verified when it is used."""
        if self._disk is None:
            return
        files, told = self._disk.files, 0
        for number in self._found:
            try:
                found = await self._disk.load(number)
            except Exception:  # one segment must not hide the others, nor keep this life from writing
                log.exception("segment_not_read", segment=number)
                continue
            if found is None:
                log.warning("segment_refused", segment=number)
                if files.coding.undeciphered > told:
                    log.warning("segment_undeciphered", segment=number, pages=files.coding.undeciphered - told)
                    self._result(events.PagesUndeciphered(files.coding.undeciphered - told))
                    told = files.coding.undeciphered
                continue
            size, records, torn = found
            if torn:
                log.warning("segment_log_torn", segment=number, records=len(records), torn_bytes=torn)
            for at in range(0, max(1, len(records)), FOUND_RECORDS):
                self._result(events.SegmentFound(number, size, records[at : at + FOUND_RECORDS], not at))
                await asyncio.sleep(0)
        self._result(events.SegmentsEnded())

    def disk_busy(self) -> list[dict[str, Any]]:
        """For the dump: what the disk's threads do."""
        return self._disk.busy() if self._disk is not None else []

    def answer(self, answering: Coroutine[Any, Any, None]) -> None:
        """Runs what answers a request later; it is given up when this closes."""
        task = self._loop.create_task(answering)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def measure_disk(self, request: Request, size: int) -> None:
        """Answers a `disk_speed`. One at a time; a disk that hangs answers nobody, and the asker's deadline speaks for it."""
        if not self._config.disk_dir:
            request.fail(ErrorCode.UNSUPPORTED, "this tier has no disk level")
            return
        if self._measuring:
            request.fail(ErrorCode.BUSY, "the disk is being measured")
            return
        self._measuring = True
        folder = Path(self._config.disk_dir) / self._config.node
        try:
            found = await apart(lambda: measure(folder, size))
        except OSError as error:
            request.fail(ErrorCode.DISK_REFUSED, f"{folder}: {error.strerror}")
        else:
            request.reply(Document("tier", self._config.node, self._epoch, json.dumps(found)))
        finally:
            self._measuring = False

    async def stop_disk(self, timeout_s: float) -> None:
        """Afterwards the disk touches no slot any more, unless `disk_hangs`."""
        if self._disk is not None:
            hang = await self._disk.stop(timeout_s)
            self.disk_hangs = bool(hang)
            if hang:
                log.error("disk_left_behind", threads=hang)

    async def stop_mover(self) -> None:
        """Afterwards no READ of this tier can land any more."""
        if self._mover is not None:
            await self._mover.stop()

    def close(self) -> None:
        """Ends threads and links."""
        for task in self._answers:
            task.cancel()
        self._hasher.close()
        self.metaservers.close()
        self._peers.close()

    # --- commands ----------------------------------------------------------------------------------------------------

    def carry_out(self, command: Command) -> None:
        match command:
            case Table() | Cut() | ReadersUntil():
                self._life.store(command)
            case Reply(asker, message):
                if isinstance(message, Attached) and self.probing is not None:
                    self._probes.keep(message.session, message.member, self.probing)
                    self.probing = None
                asker.reply(message)
            case Fail(asker, code, text):
                asker.fail(code, text)
            case Publish(topic, message):
                self._publisher.publish(topic, message)
            case OpenTopic(topic):
                self._publisher.open_topic(topic)
            case CloseTopic(topic):
                self._publisher.close_topic(topic)
            case Hash(job, slots, lengths):
                self._hasher.hash(slots, lengths, lambda found: self._result(events.Hashed(job, found)))
            case Locate(ask, keys, wait_ms, expected, tails, holes):
                self.metaservers.ask(
                    catalogue.Locate(self._config.node, keys, wait_ms, expected, tails, holes),
                    wait_ms / 1e3 + 1.0,
                    lambda answer: self._result(events.LocateAnswer(ask, _typed(answer, catalogue.Located))),
                )
            case AskNodes(job):
                self.metaservers.ask(
                    catalogue.Nodes(),
                    NODES_BUDGET_S,
                    lambda answer: self._result(events.NodesAnswer(job, _typed(answer, catalogue.NodeList))),
                )
            case Offer():
                self._offer(command)
            case Resume():
                self._loop.call_soon(self._result, events.Resumed())
            case PinAt():
                self._pin(command)
            case UnpinAt(endpoint, epoch, lease):
                self._peers.send(endpoint, epoch, transfer.Unpin(lease), PIN_BUDGET_S, lambda _: None)
            case Read():
                self._read(command)
            case GiveUp(fetch):
                self._mover.give_up(fetch)
            case ForgetPeer(peer):
                if self._mover is not None:
                    self._mover.forget_peer(peer)
            case DiskWrite() | DiskRead() | DiskGiveUp() | DiskDrop():
                self._disk_job(command)
            case Forget(session, member, unlink):
                self._probes.forget(session, member, unlink)
            case Log(event, fields):
                log.info(event, **fields)
            case _:
                assert_never(command)

    def failed(self, command: Command) -> None:
        """It raised. What waits for its answer gets one, or it would keep its slots for ever."""
        error = RemoteError(ErrorCode.INTERNAL, f"{type(command).__name__} failed here")
        answer: events.Event
        match command:
            case Table() | Cut() | ReadersUntil():
                self._life.store_again(command)
                return
            case Hash(job):
                answer = events.Hashed(job, None)
            case Locate(ask):
                answer = events.LocateAnswer(ask, error)
            case AskNodes(job):
                answer = events.NodesAnswer(job, error)
            case Offer(job):
                answer = events.TakeAnswer(job, error)
            case PinAt(fetch):
                answer = events.PinAnswer(fetch, error, clock.now())
            case DiskWrite(job):
                answer = events.DiskWritten(job, ErrorCode.INTERNAL)
            case DiskRead(job):
                answer = events.DiskReadEnded(job, None)
            case Read(fetch) if self._mover is None or not self._mover.holds(fetch):
                answer = events.ReadEnded(fetch, ErrorCode.INTERNAL)
            case _:
                return
        self._loop.call_soon(self._result, answer)

    def _pin(self, command: PinAt) -> None:
        sent_at = clock.now()
        message = transfer.Pin(self._config.node, command.keys, command.shards, command.ttl_ms)

        def answered(answer: Any) -> None:
            self._result(events.PinAnswer(command.fetch, _typed(answer, transfer.Pinned), sent_at))

        self._peers.send(command.endpoint, command.epoch, message, PIN_BUDGET_S, answered)

    def _offer(self, command: Offer) -> None:
        message = transfer.Take(self._config.node, self._epoch, self.requests_endpoint, command.keys, u32s(command.lengths))

        def answered(answer: Any) -> None:
            self._result(events.TakeAnswer(command.job, _typed(answer, transfer.Taken)))

        self._peers.send(command.endpoint, command.epoch, message, PIN_BUDGET_S, answered)

    def _disk_job(self, command: DiskWrite | DiskRead | DiskGiveUp | DiskDrop) -> None:
        assert self._disk is not None
        match command:
            case DiskWrite():
                self._disk.write(command)
            case DiskRead():
                self._disk.read(command)
            case DiskGiveUp(job):
                self._disk.give_up(job)
            case DiskDrop(segment):
                self._disk.drop(segment)

    def _read(self, command: Read) -> None:
        if self._mover is None:
            self._loop.call_soon(self._result, events.ReadEnded(command.fetch, "no_mover"))
            return
        notify = b"%s/%016x" % (self._config.node.encode(), self._epoch)
        self._mover.read(
            command.fetch,
            command.peer,
            command.metadata,
            command.base,
            command.pool_bytes,
            array("Q", command.local),
            array("Q", command.remote),
            array("I", command.lengths),
            notify,
        )

    def mover_pids(self) -> list[int]:
        """Process ids of the movers, the current one first."""
        return self._mover.pids() if self._mover is not None else []

    def mover_counts(self) -> dict[str, Any] | None:
        """For the dump; None without a mover."""
        return self._mover.counts() if self._mover is not None else None


def _typed(answer: Any, wanted: type[Any]) -> Any:
    """An answer of another type than the question asks for is an error of the peer."""
    if isinstance(answer, wanted | Exception):
        return answer
    return RemoteError(ErrorCode.BAD_MESSAGE, f"expected {wanted.KIND}, got {type(answer).__name__}")
