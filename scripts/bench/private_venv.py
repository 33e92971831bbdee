"""A peer's package in a virtual environment of its own, because its packages are not this project's. Kept in the cache folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from environment.checkout import CACHE


class Missing(Exception):
    """A peer cannot be had; says why."""


def private_venv(name: str, package: str) -> Path:
    """The folder with its programs. `package`: with its version; installed on first use. Raises Missing."""
    folder = CACHE / name
    complete = folder / "complete"
    python = folder / "bin" / "python"
    if not complete.exists() or complete.read_text() != package:
        for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), "-m", "pip", "install", package]):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                said = done.stderr.strip().splitlines()[-1:]
                raise Missing(f"{' '.join(command[-3:])} ended with {done.returncode}: {said}")
        complete.write_text(package)
    return python.parent
