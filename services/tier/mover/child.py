"""One mover process as the tier sees it: started, spoken to, killed, and gone only when reaped."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

from pegaflow.common import logs
from pegaflow.services.tier.mover import lock as mover_lock
from pegaflow.services.tier.mover.wire import Decoder, Message, Metadata, Ready, WireBroken, encode

log = logs.get(__name__)

_MODULE: Final = "pegaflow.services.tier.mover.process"
_STDERR: Final = 2
_ALLOWED: Final = ("UCX_", "NIXL_")
# `lo` only where nobody chose: else UCX would spread one transfer over every interface it finds. 256K doubles TCP throughput.
_DEFAULTS: Final = {
    "UCX_NET_DEVICES": "lo",
    "UCX_TCP_TX_SEG_SIZE": "256K",
    "UCX_TCP_RX_SEG_SIZE": "256K",
    "OPENBLAS_NUM_THREADS": "1",
}


def environment(inherited: Mapping[str, str], ucx: Mapping[str, str]) -> dict[str, str]:
    """The mover's environment: defaults < ours < `ucx`. Raises ValueError for a name that is not UCX's or NIXL's."""
    strange = sorted(name for name in ucx if not name.startswith(_ALLOWED))
    if strange:
        raise ValueError(f"not settings of UCX or NIXL: {', '.join(strange)}")
    return {**_DEFAULTS, **inherited, **ucx}


class Mover(asyncio.Protocol):
    """Owns the child, its socket, its lock file and its waitpid. Lives on one event loop."""

    def __init__(
        self,
        runtime: Path,
        node: str,
        *,
        on_message: Callable[[Mover, Message], None],
        on_exit: Callable[[Mover], None],
    ) -> None:
        """`on_exit` is called once, after the child was reaped and everything it had said was given to `on_message`."""
        token = secrets.token_hex(16)
        self.agent: Final = f"{node}:{token}"
        self.metadata = b""
        self.base = 0
        self._lock_path = mover_lock.path_for(runtime, token)
        self._on_message = on_message
        self._on_exit = on_exit
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._reaped = False
        self._said_all = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._gone: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        """0 before `start`."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Started and not reaped."""
        return self._process is not None and not self._reaped

    def start(self, pool_path: Path, pool_size: int, env: Mapping[str, str]) -> None:
        """Starts the child; `Ready` or `Failed` comes through `on_message`. Raises OSError if it cannot be started.

        On the loop's thread, although that costs it some milliseconds: the kernel kills the child when the *thread* that made
        it ends.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-m", _MODULE),
                        *("--fd", str(theirs.fileno())),
                        *("--parent", str(os.getpid())),
                        *("--lock", str(self._lock_path)),
                        *("--agent", self.agent),
                        *("--pool", str(pool_path)),
                        *("--size", str(pool_size)),
                    ],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=_STDERR,
                    env=dict(env),
                )
            except OSError:
                ours.close()
                raise
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop = loop
        self._gone = loop.create_future()
        loop.add_reader(self._pidfd, self._reap)
        ours.setblocking(False)
        self._connecting = loop.create_task(self._connect(ours))

    async def _connect(self, ours: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            # Nothing will ever be heard of this child.
            ours.close()
            self.connection_lost(None)
            raise

    def send(self, command: Message) -> None:
        """Queues a command; after the child's death it is dropped. Raises WireBroken if it is too large."""
        frame = encode(command)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def kill(self) -> None:
        """SIGKILL. It is gone only when `on_exit` is called."""
        if self.alive:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> None:
        """Until it is gone and `on_exit` has been called; at once if it was never started."""
        if self._gone is not None:
            await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                if type(message) is Ready:
                    self.base, self.metadata = message.base, message.metadata
                    # Fails here rather than at every other tier.
                    Metadata.unpack(message.metadata)
                self._on_message(self, message)
        except WireBroken as error:
            log.error("mover_wire_broken", pid=self.pid, text=str(error))
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._said_all = True
        # The child ends when it sees this; the signal covers one that no longer reads.
        self.kill()
        self._finish()

    def _reap(self) -> None:
        assert self._process is not None and self._loop is not None
        self._process.wait()
        self._reaped = True
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._lock_path.unlink(missing_ok=True)
        self._finish()

    def _finish(self) -> None:
        if not (self._reaped and self._said_all) or self._gone is None or self._gone.done():
            return
        assert self._process is not None
        log.info("mover_gone", pid=self.pid, status=self._process.returncode)
        self._on_exit(self)
        self._gone.set_result(None)
