"""Programs of the operating system that tests run beside the project's own: installed where that is allowed, else named."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from environment.progress import say, step

WANTED: Final = {"redis-server": ("redis-server", "valkey-server")}
"""Package of Debian → the programs any of which will do."""


def install_programs() -> None:
    """Tests that need a program fail and say so when it is missing; everything else works without it."""
    for package, programs in WANTED.items():
        if any(map(shutil.which, programs)):
            continue
        if os.geteuid() == 0 and shutil.which("apt-get"):
            with step(f"install the system's {package}"):
                apt_install(package)
        if not any(map(shutil.which, programs)):
            say(f"! {package} is missing, and its tests will fail: apt-get install {package}")


def apt_install(package: str) -> None:
    """Says why where it does not work; needs to be root."""
    # RUNLEVEL=1: the package must not start a server of its own on this machine.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", package]
    for command in (install, ["apt-get", "update"], install):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if command is install and done.returncode == 0:
            return
    say(f"  apt-get: {done.stderr.strip().splitlines()[-1:]}")
