"""A real redis-server of a test's own: on a socket in its folder, without a port, without files that last."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType


class RedisServer:
    """A context manager. Raises `RuntimeError` with what to do when there is no redis-server on this machine."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise RuntimeError(
                "redis-server is missing: scripts/setup installs it where it may, else apt-get install redis-server"
            )
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._command = [found, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder)]
        self._command += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"]

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
