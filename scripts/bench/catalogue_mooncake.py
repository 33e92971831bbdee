"""Mooncake's master, if it can be had: in a virtual environment of its own, because its packages are not this project's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from private_venv import Missing, private_venv

from environment.system import apt_install

PACKAGE: Final = "mooncake-transfer-engine-non-cuda==0.3.13.post1"


class MooncakeMaster(NamedTuple):
    """`at`: where it takes requests; `python`: runs its clients; `pid`: its own."""

    at: str
    python: str
    pid: int

    @classmethod
    def run(cls, spawn: Callable[..., subprocess.Popen[bytes]], port: Callable[[], int], *flags: str) -> MooncakeMaster:
        """Installs it on first use. `flags`: on top of where it listens. Raises Missing."""
        programs = _installed()
        at = f"127.0.0.1:{port()}"
        where = [f"--rpc_port={at.rpartition(':')[2]}", f"--metrics_port={port()}", "--rpc_address=127.0.0.1"]
        master = spawn([str(programs / "mooncake_master"), *where, *flags], log="mooncake.log")
        end = time.monotonic() + 30.0
        while not _listens(at):
            if master.poll() is not None or time.monotonic() > end:
                raise Missing(f"mooncake_master does not listen (ended with {master.poll()})")
            time.sleep(0.05)
        return cls(at, str(programs / "python"), master.pid)


def _listens(at: str) -> bool:
    host, _, port = at.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), 1.0):
            return True
    except OSError:
        return False


def _installed() -> Path:
    """The folder with its programs. Raises Missing."""
    if not _has_ibverbs() and os.geteuid() == 0 and shutil.which("apt-get"):
        apt_install("libibverbs1")
    if not _has_ibverbs():
        raise Missing("libibverbs.so.1 is missing (apt-get install libibverbs1)")
    return private_venv("mooncake", PACKAGE)


def _has_ibverbs() -> bool:
    listed = subprocess.run(["ldconfig", "-p"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "libibverbs.so.1" in listed.stdout
