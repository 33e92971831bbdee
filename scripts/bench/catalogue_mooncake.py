"""Mooncake's master, if it can be had: in a virtual environment of its own, because its packages are not this project's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from environment.checkout import CACHE

PACKAGE: Final = "mooncake-transfer-engine-non-cuda==0.3.13.post1"
_FOLDER: Final = CACHE / "mooncake"


class MooncakeMaster(NamedTuple):
    """`at`: where it takes requests; `python`: runs its clients."""

    at: str
    python: str

    @classmethod
    def start(cls, spawn: Callable[..., subprocess.Popen[bytes]], port: Callable[[], int]) -> MooncakeMaster | None:
        """Installs it on first use; None, with a line that says why, where that does not work."""
        python = _FOLDER / "bin" / "python"
        why = "" if (_FOLDER / "complete").exists() else _install(python)
        if why:
            print(f"mooncake_master is left out: {why}", flush=True)
            return None
        at = f"127.0.0.1:{port()}"
        flags = [f"--rpc_port={at.rpartition(':')[2]}", f"--metrics_port={port()}", "--rpc_address=127.0.0.1"]
        master = spawn([str(python.parent / "mooncake_master"), *flags], log="mooncake.log")
        end = time.monotonic() + 30.0
        while not _listens(at):
            if master.poll() is not None or time.monotonic() > end:
                print(f"mooncake_master is left out: it does not listen (ended with {master.poll()})", flush=True)
                return None
            time.sleep(0.05)
        return cls(at, str(python))


def _listens(at: str) -> bool:
    host, _, port = at.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1.0):
            return True
    except OSError:
        return False


def _install(python: Path) -> str:
    """What is missing; empty when nothing is."""
    if not _has_ibverbs() and os.geteuid() == 0 and shutil.which("apt-get"):
        _run(["apt-get", "install", "-y", "--no-install-recommends", "libibverbs1"])
    if not _has_ibverbs():
        return "libibverbs.so.1 is missing (apt-get install libibverbs1)"
    for command in ([sys.executable, "-m", "venv", str(_FOLDER)], [str(python), "-m", "pip", "install", PACKAGE]):
        done = _run(command)
        if done.returncode:
            return f"{' '.join(command[-3:])} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
    (_FOLDER / "complete").touch()
    return ""


def _has_ibverbs() -> bool:
    return "libibverbs.so.1" in _run(["ldconfig", "-p"]).stdout


def _run(command: list[str]) -> Any:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
