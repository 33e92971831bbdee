"""The tier's hands between nodes: READs pages of other tiers' pools into its own, through a child process that owns NIXL.

    pool = MoverPool(runtime, node, pool_file, pool_size, on_done=…, on_metadata=…, ucx={})
    await pool.start()
    pool.read(job, "node-b/17", metadata, base, size, local, remote, lengths, b"…")   # … on_done(job, "done", "")
    await pool.stop()

`on_done` is called exactly once per job, never from inside `read`, and only when nothing can land in the job's
destination any more: see `jobs` for the rules and `Outcome` for the codes. So a destination may be reused after
`on_done` and not before.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

from pegaflow.common import clock, logs
from pegaflow.services.tier.mover import lock as mover_lock
from pegaflow.services.tier.mover.child import Mover, environment
from pegaflow.services.tier.mover.events import (
    DEFAULT_LIMITS,
    Announce,
    Command,
    DeadlinePassed,
    Event,
    GiveUpIn,
    Kill,
    Limits,
    MoverNumber,
    MoverReady,
    MoverReaped,
    Outcome,
    Post,
    ReadAsked,
    ReadEnded,
    Recycle,
    Spawn,
    Start,
    Stop,
    Tell,
    Tick,
)
from pegaflow.services.tier.mover.introductions import Introductions
from pegaflow.services.tier.mover.jobs import MoverJobs
from pegaflow.services.tier.mover.watch import Watch
from pegaflow.services.tier.mover.wire import (
    Backed,
    Ended,
    Failed,
    GiveUp,
    Message,
    Ping,
    Pong,
    Read,
    Ready,
    WireBroken,
)

__all__ = ["Mover", "MoverFailed", "MoverPool", "Outcome"]

log = logs.get(__name__)


class MoverFailed(Exception):
    """The first mover did not come up; `code` is stable: nixl_unusable, pool_unusable, left_over_mover, mover_died,
    start_timeout."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class MoverPool:
    """One current mover, at most one retired, and the READs they have open. Lives on one event loop; nothing here blocks
    it."""

    def __init__(
        self,
        runtime_dir: Path,
        node: str,
        pool_path: Path,
        pool_size: int,
        *,
        on_done: Callable[[int, str, str], None],
        on_metadata: Callable[[bytes], None],
        ucx: Mapping[str, str],
        limits: Limits = DEFAULT_LIMITS,
        start_timeout_s: float = 60.0,
        left_over_timeout_s: float = 10.0,
    ) -> None:
        """`pool_path` is a file of at least `pool_size` bytes that never shrinks; `ucx` are UCX_… and NIXL_… settings.

        `on_metadata` is called for every mover that takes over, the first one included: from then on READs of other tiers
        should use it. Raises ValueError for a setting that is not UCX's or NIXL's.
        """
        self._runtime = runtime_dir
        self._node = node
        self._pool_path = pool_path
        self._pool_size = pool_size
        self._on_done = on_done
        self._on_metadata = on_metadata
        self._env = environment(os.environ, ucx)
        self._start_timeout_s = start_timeout_s
        self._left_over_timeout_s = left_over_timeout_s
        self._jobs = MoverJobs(limits, int(limits.quarantine_share * pool_size))
        self._movers: dict[MoverNumber, Mover] = {}
        self._numbers: dict[Mover, MoverNumber] = {}
        self._introductions = Introductions()
        self._watch = Watch(limits.hung_after_s, self._ready_movers, self._hung)
        self._asked: dict[int, Read] = {}
        self._announced: Mover | None = None
        self._first: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._start_timers: dict[Mover, asyncio.TimerHandle] = {}
        self._backed = 0
        self._pings = 0
        self._pongs: dict[int, tuple[Mover, asyncio.Future[int]]] = {}
        self._spawned = 0
        self._hung_movers = 0
        self._ended: dict[str, int] = {}

    # -- for the tier

    @property
    def metadata(self) -> bytes:
        """What another tier needs to read our pool: opaque; b"" before the first mover was ready."""
        return self._announced.metadata if self._announced is not None else b""

    @property
    def base(self) -> int:
        """Address of the pool in the mover that `metadata` belongs to; always taken together with it."""
        return self._announced.base if self._announced is not None else 0

    @property
    def ready(self) -> bool:
        """READs are taken."""
        return self._jobs.ready

    async def start(self) -> None:
        """Ends movers of an earlier tier, then starts one and waits until it is ready. Raises MoverFailed.

        Only the one tier that holds the pool's lock may call this. Nothing of the pool may be handed out before it
        returns: until then an old mover's READs may land.
        """
        loop = asyncio.get_running_loop()
        try:
            killed = await asyncio.to_thread(mover_lock.end_left_overs, self._runtime, self._left_over_timeout_s)
        except (mover_lock.LockBusy, OSError) as error:
            raise MoverFailed("left_over_mover", str(error)) from None
        if killed:
            log.warning("left_over_movers_killed", pids=killed)
        self._first = loop.create_future()
        self._handle(Start())
        try:
            await self._first
        except MoverFailed:
            await self.stop()
            raise
        self._watch.start()

    def read(
        self,
        job: int,
        peer: str,
        peer_metadata: bytes,
        peer_base: int,
        peer_size: int,
        local_offsets: array[int],
        remote_offsets: array[int],
        lengths: array[int],
        notify: bytes,
    ) -> None:
        """Copies pages of `peer` ("node/epoch") into our pool; `on_done` follows, whatever happens.

        Columns: u64 offsets from each pool's start, u32 lengths, one entry per page. `job` is the caller's and not in
        use. `notify` goes to the owner's mover when the READ has ended. Never blocks. Raises ValueError for a job number
        in use.
        """
        if self._jobs.holds(job):
            raise ValueError(f"job {job} is open already")
        try:
            known_peer = self._introductions.learn(peer, peer_metadata)
        except WireBroken as error:
            self._refuse(job, Outcome.PEER_UNREACHABLE, f"{peer}: {error}")
            return
        if (peer_base, peer_size) != (known_peer.base, known_peer.size):
            self._refuse(job, Outcome.BAD_DESCRIPTOR, f"{peer}: base and size are not those of its metadata")
            return
        if local_offsets.typecode != "Q" or remote_offsets.typecode != "Q" or lengths.typecode != "I":
            self._refuse(job, Outcome.BAD_DESCRIPTOR, "columns must be array('Q'), array('Q'), array('I')")
            return
        self._asked[job] = Read(job, peer, local_offsets.tobytes(), remote_offsets.tobytes(), lengths.tobytes(), bytes(notify))
        self._handle(ReadAsked(job, peer, sum(lengths)))

    def backed(self, size: int) -> None:
        """The first `size` bytes of the pool have memory now: movers enter them into their page tables, in the background."""
        self._backed = size
        for mover in self._ready_movers():
            mover.send(Backed(size))

    def holds(self, job: int) -> bool:
        """`on_done` is still to come for this job."""
        return self._jobs.holds(job)

    def give_up(self, job: int) -> None:
        """The deadline passed: `on_done` with landed_late, failed_late or reaped comes when its destination is quiet."""
        self._handle(DeadlinePassed(job))

    def forget_peer(self, peer: str) -> None:
        """This peer is gone for good: drop the connection once none of its READs is unfinished."""
        self._introductions.forget(peer)

    async def ping(self) -> int:
        """Returns once the current mover has answered, with the notifications that its readers sent it so far.

        Bound it by `asyncio.timeout`: a mover that hangs never answers. Raises MoverFailed when there is none or it ends.
        """
        mover = self._announced
        if mover is None or not self.ready:
            raise MoverFailed("mover_died", "no mover is ready")
        number = self._pings = self._pings + 1
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pongs[number] = (mover, answer)
        try:
            mover.send(Ping(number))
            return await answer
        finally:
            del self._pongs[number]

    def recycle(self) -> None:
        """Starts a successor; the current mover is retired when that is ready, and its end frees what was given up in it."""
        self._handle(Recycle())

    async def stop(self) -> None:
        """Kills all movers and returns when they are reaped; all open jobs have been told by then."""
        self._watch.stop()
        self._handle(Stop())
        await asyncio.gather(*(mover.wait() for mover in list(self._numbers)))
        self._arm()

    def counts(self) -> dict[str, int]:
        """For metrics: open, given_up, quarantined_bytes, movers, spawned, hung, peers, ended_<outcome> for each outcome seen."""
        return {
            "open": self._jobs.open,
            "given_up": self._jobs.given_up,
            "quarantined_bytes": self._jobs.quarantined,
            "movers": self._jobs.movers,
            "spawned": self._spawned,
            "hung": self._hung_movers,
            "peers": len(self._introductions),
            **{f"ended_{outcome}": count for outcome, count in self._ended.items()},
        }

    def pids(self) -> list[int]:
        """Process ids of the movers that are not reaped, the current one first."""
        return sorted(
            (mover.pid for mover in self._numbers if mover.pid),
            key=lambda pid: self._announced is None or pid != self._announced.pid,
        )

    # -- between the state and the world

    def _handle(self, event: Event) -> None:
        for command in self._jobs.handle(event, clock.now()):
            self._do(command)
        self._arm()

    def _do(self, command: Command) -> None:
        match command:
            case Spawn(number):
                self._spawn(number)
            case Kill(number):
                self._movers[number].kill()
            case Announce(number):
                self._announced = self._movers[number]
                if self._first is not None and not self._first.done():
                    self._first.set_result(None)
                self._soon(self._on_metadata, self._announced.metadata)
            case Post(number, job):
                self._post(self._movers[number], self._asked.pop(job))
            case GiveUpIn(number, job):
                self._movers[number].send(GiveUp(job))
            case Tell(job, outcome, text):
                self._asked.pop(job, None)
                self._refuse(job, outcome, text)
            case _:
                assert_never(command)

    def _post(self, mover: Mover, read: Read) -> None:
        self._introductions.introduce(mover, read.peer)
        try:
            mover.send(read)
        except WireBroken as error:
            text = str(error)
            number = self._numbers[mover]
            self._soon(self._handle, ReadEnded(number, read.job, Outcome.BAD_DESCRIPTOR, text, True))

    def _refuse(self, job: int, outcome: Outcome, text: str) -> None:
        self._ended[outcome] = self._ended.get(outcome, 0) + 1
        self._soon(self._on_done, job, str(outcome), text)

    @staticmethod
    def _soon(call: Callable[..., None], *arguments: object) -> None:
        # Never from inside the caller's own call: it may not be ready for its own answer.
        asyncio.get_running_loop().call_soon(call, *arguments)

    def _spawn(self, number: MoverNumber) -> None:
        mover = Mover(self._runtime, self._node, on_message=self._on_message, on_exit=self._on_exit)
        self._movers[number] = mover
        self._numbers[mover] = number
        self._introductions.started(mover)
        self._spawned += 1
        try:
            mover.start(self._pool_path, self._pool_size, self._env)
        except OSError as error:
            log.error("mover_not_started", text=str(error))
            self._soon(self._on_exit, mover)
            return
        loop = asyncio.get_running_loop()
        self._start_timers[mover] = loop.call_later(self._start_timeout_s, self._start_timed_out, mover)
        log.info("mover_started", pid=mover.pid, agent=mover.agent)

    def _start_timed_out(self, mover: Mover) -> None:
        log.error("mover_start_timeout", pid=mover.pid, seconds=self._start_timeout_s)
        self._first_failed("start_timeout", f"no mover within {self._start_timeout_s} s")
        mover.kill()

    def _ready_movers(self) -> list[Mover]:
        return [mover for mover in self._numbers if mover.metadata]

    def _hung(self, mover: Mover) -> None:
        log.error("mover_hung", pid=mover.pid)
        self._hung_movers += 1
        mover.kill()

    def _on_message(self, mover: Mover, message: Message) -> None:
        number = self._numbers[mover]
        match message:
            case Ready():
                self._disarm_start(mover)
                mover.send(Backed(self._backed))
                self._handle(MoverReady(number))
            case Ended(job, outcome, text, quiet):
                self._handle(ReadEnded(number, job, Outcome(outcome), text, quiet))
            case Failed(code, text):
                log.error("mover_failed", pid=mover.pid, code=code, text=text)
                self._first_failed(code, text)
            case Pong(ping, notifications):
                self._watch.answered(mover)
                _, answer = self._pongs.get(ping, (None, None))
                if answer is not None and not answer.done():
                    answer.set_result(notifications)
            case _:
                log.error("mover_said_a_command", pid=mover.pid, kind=type(message).__name__)

    def _on_exit(self, mover: Mover) -> None:
        for asked, answer in self._pongs.values():
            if asked is mover and not answer.done():
                answer.set_exception(MoverFailed("mover_died", "the mover ended"))
        self._disarm_start(mover)
        self._first_failed("mover_died", f"the mover ended before it was ready (pid {mover.pid})")
        number = self._numbers.pop(mover)
        del self._movers[number]
        self._introductions.gone(mover)
        self._watch.answered(mover)
        self._handle(MoverReaped(number))

    def _first_failed(self, code: str, text: str) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_exception(MoverFailed(code, text))

    def _disarm_start(self, mover: Mover) -> None:
        timer = self._start_timers.pop(mover, None)
        if timer is not None:
            timer.cancel()

    def _arm(self) -> None:
        """One timer for the next thing that is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._jobs.next_tick()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(due - clock.now(), 0.0), self._handle, Tick())
