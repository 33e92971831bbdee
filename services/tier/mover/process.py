"""The mover: a child of the tier that owns NIXL and reads other tiers' pools into ours.

    python -m pegaflow.services.tier.mover.process --fd N --parent PID --lock FILE --agent NAME --pool FILE --size BYTES

A process of its own because UCX can crash, spin or abort the one it lives in, and because its end is the only proof that
a READ given up lands no more. It therefore knows one way to end: SIGKILL, from its parent, from the kernel when the
parent dies, or from itself. It never unmaps or deregisters the pool: deregistering revokes nothing, and unmapping crashes
peers that read through TCP.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import mmap
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from pegaflow.common import faults
from pegaflow.common.fault_points import Point
from pegaflow.services.tier.mover import lock as mover_lock
from pegaflow.services.tier.mover.agent import NixlAgent
from pegaflow.services.tier.mover.descriptors import Region
from pegaflow.services.tier.mover.lane import Lane
from pegaflow.services.tier.mover.populator import Populator
from pegaflow.services.tier.mover.wire import (
    AddPeer,
    Backed,
    Decoder,
    Failed,
    ForgetPeer,
    GiveUp,
    Message,
    Metadata,
    Ping,
    Pong,
    Read,
    Ready,
    WireBroken,
    encode,
)

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_TIMER_SLACK_NS: Final = 1_000  # the default of 50 µs would be longer than the pauses between looks
MAX_LANES: Final = 8
_NOTIFICATIONS_S: Final = 0.25
_RECEIVE_BYTES: Final = 1 << 18


class _Arguments(NamedTuple):
    fd: int
    parent: int
    lock: Path
    agent: str
    pool: Path
    size: int


def main(argv: list[str] | None = None) -> NoReturn:
    """Runs until killed."""
    arguments = _parse(argv)
    _die_with_parent(arguments.parent)
    # Ctrl-C, a supervisor's SIGTERM and SIGHUP may go to the whole group, but the tier decides when its mover ends.
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    faulthandler.enable()
    faults.arm(os.environ)  # the tier has checked it
    MoverProcess(arguments).run()


class MoverProcess:
    """The command thread: reads commands, deals them out to lanes, never waits for NIXL."""

    def __init__(self, arguments: _Arguments) -> None:
        self._arguments = arguments
        self._socket = socket.socket(fileno=arguments.fd)
        self._socket.setblocking(True)
        self._sending = threading.Lock()
        self._lanes: dict[int, Lane] = {}
        self._notifications = 0

    def run(self) -> NoReturn:
        """Lock, map, register, say so, then serve commands until the parent is gone."""
        try:
            mover_lock.take(self._arguments.lock)
            faults.reach(Point.MOVER_START_AFTER_LOCK)
            self._pool = _map(self._arguments.pool, self._arguments.size)
        except (OSError, ValueError, mover_lock.LockBusy) as error:
            self._fail("pool_unusable", f"{type(error).__name__}: {error}")
        try:
            self._agent = NixlAgent(self._arguments.agent)
            blob = self._agent.register(*self._pool)
            faults.reach(Point.MOVER_START_AFTER_REGISTER)
        except Exception as error:
            # ImportError, and whatever the bindings raise.
            self._fail("nixl_unusable", f"{type(error).__name__}: {error}")
        self._populator = Populator(self._pool)
        metadata = Metadata(self._arguments.agent, self._pool.base, self._pool.size, blob)
        try:
            self._send(Ready(self._pool.base, metadata.pack()))
            faults.reach(Point.MOVER_START_AFTER_READY)
            self._serve()
        except (WireBroken, OSError) as error:
            self._fail("parent_lost", f"{type(error).__name__}: {error}")
        except Exception as error:
            self._fail("internal", f"{type(error).__name__}: {error}")
        _end()

    def _serve(self) -> None:
        decoder = Decoder()
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        due = 0.0
        while True:
            ready = poller.poll(_NOTIFICATIONS_S * 1000)
            now = time.monotonic()
            if now >= due:
                due = now + _NOTIFICATIONS_S
                self._notifications += self._agent.notifications()
            if not ready:
                continue
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                return
            for message in decoder.feed(data):
                self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Read() | AddPeer() | ForgetPeer():
                self._lane(message.peer).submit(message)
            case GiveUp():
                # Which lane has the job is the lanes' business; for the others the number means nothing.
                for lane in self._lanes.values():
                    lane.submit(message)
            case Backed(size):
                self._populator.backed(size)
            case Ping(number):
                self._notifications += self._agent.notifications()
                self._send(Pong(number, self._notifications))
            case _:
                raise WireBroken(f"{type(message).__name__} is no command")

    def _lane(self, peer: str) -> Lane:
        # By name, so that a peer that comes back meets the lane that may still be closing its old connection.
        number = zlib.crc32(peer.encode()) % MAX_LANES
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(self._agent, self._pool, self._send, self._lane_died)
            lane.start()
        return lane

    def _send(self, message: Message) -> None:
        with self._sending:
            self._socket.sendall(encode(message))

    def _lane_died(self, text: str) -> None:
        self._fail("internal", text)

    def _fail(self, code: str, text: str) -> NoReturn:
        try:
            self._send(Failed(code, text))
        except OSError:
            print(f"mover: {code}: {text}", file=sys.stderr, flush=True)
        _end()


def _map(path: Path, size: int) -> Region:
    """Maps the pool for the rest of this process's life. Raises OSError or ValueError."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size < size or size <= 0:
            raise ValueError(f"{path} is no regular file of at least {size} bytes")
        memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    memory.madvise(mmap.MADV_DONTFORK)
    # hugetlbfs has huge pages anyway, other file systems may have none.
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    # The exported buffer keeps the mapping from ever being closed.
    anchor = ctypes.c_char.from_buffer(memory)
    _ANCHORS.append(anchor)
    return Region(ctypes.addressof(anchor), size)


_ANCHORS: Final[list[ctypes.c_char]] = []


def _die_with_parent(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG")
    libc.prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS, 0, 0, 0)
    # The parent may have died before the line above.
    if os.getppid() != parent:
        _end()


def _end() -> NoReturn:
    """No destructors: UCX crashes in them when READs are pending."""
    os.kill(os.getpid(), signal.SIGKILL)
    while True:
        signal.pause()


def _parse(argv: list[str] | None) -> _Arguments:
    parser = argparse.ArgumentParser(prog="mover", description="Started by the tier; not for use by hand.")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--size", type=int, required=True)
    return _Arguments(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
