"""One thread of the mover: connects its peers, posts their READs and watches them until they end.

Over `cma` posting a READ *is* the copy and takes as long; connecting takes 7-25 ms. So both happen here, never on the
thread that reads commands. A peer belongs to one lane for good, which keeps its commands in order without locks.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from pegaflow.common import faults
from pegaflow.common.fault_points import Point
from pegaflow.services.tier.mover.agent import NixlAgent, NixlError, State
from pegaflow.services.tier.mover.descriptors import BadDescriptor, Region, build
from pegaflow.services.tier.mover.events import Outcome
from pegaflow.services.tier.mover.pace import Pace
from pegaflow.services.tier.mover.wire import AddPeer, Ended, ForgetPeer, GiveUp, Read

# A look at a READ that takes longer than this has moved bytes: look again at once.
_WORKED_NS: Final = 15_000
# READs that nobody waits for are looked at this often; UCX's own thread keeps them going.
_LAZY_S: Final = 0.01
# After a connection broke, UCX closes the endpoint and completes its requests within a few turns of its progress thread.
# NIXL has no call to wait for that, so the READ is reported this much later.
_SETTLE_S: Final = 0.1
# Commands taken between two looks: a look costs as much as there are open READs.
_BATCH: Final = 32

LaneCommand = AddPeer | Read | GiveUp | ForgetPeer


@dataclass(slots=True)
class _Connection:
    agent: str
    region: Region
    posted: int = 0
    # No new READs; closed when the last posted one has ended.
    stale: bool = False


@dataclass(slots=True)
class _Peer:
    introduction: AddPeer
    connection: _Connection | None = None


@dataclass(slots=True)
class _Posted:
    connection: _Connection
    handle: int
    given_up: bool = False
    failure: str = ""
    settled_at: float = field(default=0.0)


class Lane:
    """A daemon thread; the process ends by SIGKILL only, so it is never joined."""

    def __init__(self, agent: NixlAgent, pool: Region, emit: Callable[[Ended], None], die: Callable[[str], None]) -> None:
        """`emit` is called from this thread; `die` ends the process when something happened that nobody foresaw."""
        self._agent = agent
        self._pool = pool
        self._emit = emit
        self._die = die
        self._commands: queue.SimpleQueue[LaneCommand] = queue.SimpleQueue()
        self._cancelled: set[int] = set()
        self._peers: dict[str, _Peer] = {}
        self._posted: dict[int, _Posted] = {}
        self._closing: list[_Connection] = []
        self._pace = Pace()
        self._lazy_at = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="mover-lane", daemon=True).start()

    def submit(self, command: LaneCommand) -> None:
        """Never blocks; called from the command thread."""
        if type(command) is GiveUp:
            # Seen before a queued READ is posted, even while this lane is busy copying.
            self._cancelled.add(command.job)
        self._commands.put(command)

    def _run(self) -> None:
        try:
            while True:
                self._turn()
        except Exception as error:
            self._die(f"{type(error).__name__}: {error}")

    def _turn(self) -> None:
        try:
            self._apply(self._commands.get(timeout=self._pause()))
            for _ in range(_BATCH - 1):
                self._apply(self._commands.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        self._pace.looked(worked=self._look(now), now=now)

    def _pause(self) -> float | None:
        """Seconds to wait for a command; None: for as long as it takes."""
        if not self._posted:
            return None
        if all(posted.given_up for posted in self._posted.values()):
            return _LAZY_S
        return self._pace.pause()

    def _apply(self, command: LaneCommand) -> None:
        match command:
            case AddPeer(name):
                self._drop(self._peers.pop(name, None))
                self._peers[name] = _Peer(command)
            case ForgetPeer(name):
                self._drop(self._peers.pop(name, None))
            case GiveUp(job):
                faults.reach(Point.MOVER_GIVE_UP_BEFORE_APPLIED)
                self._cancelled.discard(job)
                posted = self._posted.get(job)
                if posted is not None:
                    posted.given_up = True
            case Read():
                self._read(command)
            case _:
                assert_never(command)

    def _read(self, read: Read) -> None:
        peer = self._peers.get(read.peer)
        if read.job in self._cancelled:
            self._end(read.job, Outcome.PEER_UNREACHABLE, "given up before it was posted")
            return
        if peer is None:
            self._end(read.job, Outcome.PEER_UNREACHABLE, f"{read.peer} was never introduced")
            return
        region = Region(peer.introduction.base, peer.introduction.size)
        try:
            faults.reach(Point.MOVER_READ_BEFORE_CONNECT)
            pages = build(self._pool, region, read.local, read.remote, read.lengths)
        except BadDescriptor as error:
            self._end(read.job, Outcome.BAD_DESCRIPTOR, str(error))
            return
        try:
            connection = self._connect(peer)
            handle = self._agent.prepare(connection.agent, pages.local, pages.remote, read.notify or b"read")
        except NixlError as error:
            if error.disconnected:
                self._break(peer.connection)
            self._end(read.job, Outcome.PEER_UNREACHABLE, str(error))
            return
        connection.posted += 1
        posted = self._posted[read.job] = _Posted(connection, handle)
        self._pace.posted(time.monotonic())
        faults.reach(Point.MOVER_READ_BEFORE_POST)
        try:
            state = self._agent.post(handle)
            faults.reach(Point.MOVER_READ_AFTER_POST)
            if state is State.DONE:
                self._finish(read.job, posted, Outcome.DONE, "")
        except NixlError as error:
            self._fail(read.job, posted, error)

    def _connect(self, peer: _Peer) -> _Connection:
        if peer.connection is not None:
            return peer.connection
        intro = peer.introduction
        if any(old.agent == intro.agent for old in self._closing):
            raise NixlError("the broken connection still has unfinished READs", disconnected=False)
        name = self._agent.connect(intro.metadata)
        if name != intro.agent:
            raise NixlError(f"metadata of {name}, expected {intro.agent}", disconnected=False)
        peer.connection = _Connection(name, Region(intro.base, intro.size))
        return peer.connection

    def _look(self, now: float) -> bool:
        """Asks for the state of every posted READ; whether any of the looks moved bytes."""
        worked = False
        lazy = now >= self._lazy_at
        if lazy:
            self._lazy_at = now + _LAZY_S
        for job, posted in list(self._posted.items()):
            if posted.failure:
                if now >= posted.settled_at:
                    self._finish(job, posted, Outcome.PEER_LOST, posted.failure)
                continue
            if posted.given_up and not lazy:
                continue
            began = time.perf_counter_ns()
            try:
                if self._agent.state(posted.handle) is State.DONE:
                    self._finish(job, posted, Outcome.DONE, "")
                    worked = True
            except NixlError as error:
                self._fail(job, posted, error)
            worked |= time.perf_counter_ns() - began > _WORKED_NS
        return worked

    def _fail(self, job: int, posted: _Posted, error: NixlError) -> None:
        if error.disconnected:
            posted.failure = str(error)
            posted.settled_at = time.monotonic() + _SETTLE_S
            self._break(posted.connection)
            return
        # No proof that the rest of it stands still. The handle is kept: releasing it would prove nothing.
        del self._posted[job]
        self._emit(Ended(job, Outcome.PEER_LOST, str(error), False))

    def _finish(self, job: int, posted: _Posted, outcome: Outcome, text: str) -> None:
        del self._posted[job]
        try:
            self._agent.release(posted.handle)
        except NixlError as error:
            if outcome is not Outcome.DONE:
                self._emit(Ended(job, outcome, f"{text}; releasing it: {error}", False))
                return
        posted.connection.posted -= 1
        self._close_stale(posted.connection)
        self._end(job, outcome, text)

    def _end(self, job: int, outcome: Outcome, text: str) -> None:
        """Over, and nothing can land any more."""
        faults.reach(Point.MOVER_READ_BEFORE_REPORT)
        self._emit(Ended(job, outcome, text, True))
        faults.reach(Point.MOVER_READ_AFTER_REPORT)

    def _drop(self, peer: _Peer | None) -> None:
        if peer is not None and peer.connection is not None:
            self._retire(peer.connection)

    def _break(self, connection: _Connection | None) -> None:
        """The next READ connects anew."""
        if connection is None:
            return
        for peer in self._peers.values():
            if peer.connection is connection:
                peer.connection = None
        self._retire(connection)

    def _retire(self, connection: _Connection) -> None:
        if not connection.stale:
            connection.stale = True
            self._closing.append(connection)
        self._close_stale(connection)

    def _close_stale(self, connection: _Connection) -> None:
        if not connection.stale or connection.posted or connection not in self._closing:
            return
        self._closing.remove(connection)
        # An error means that NIXL has already dropped it by itself.
        with contextlib.suppress(NixlError):
            self._agent.disconnect(connection.agent)
