"""The processes that a benchmark starts, and the folder for their logs: all of it ends with the benchmark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from helper import Helper


class Children:
    """Everything that was started, for the end. `folder` goes with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pfc-"))
        self._ends: list[Helper | subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for child in reversed(self._ends):
            if isinstance(child, Helper):
                child.end()
            else:
                child.kill()
                child.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def count(self) -> int:
        """Started so far."""
        return len(self._ends)

    def spawn(self, command: list[str], log: str = "", environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """`environment`: on top of this process's own."""
        stream = (self.folder / log).open("wb") if log else subprocess.DEVNULL
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env={**os.environ, **(environment or {})}
        )
        self._ends.append(child)
        return child

    def helper(self, command: list[str], environment: Mapping[str, str] | None = None) -> Helper:
        """`environment`: on top of this process's own."""
        log = self.folder / f"helper-{len(self._ends)}.log"
        helper = Helper(command, log, {**os.environ, **(environment or {})})
        self._ends.append(helper)
        return helper


def free_port() -> int:
    """Of loopback; somebody else may take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
