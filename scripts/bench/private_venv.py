"""A peer's packages in a virtual environment of its own, because they are not this project's. Kept in the cache folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from environment.checkout import CACHE


class Missing(Exception):
    """A peer cannot be had; says why."""


def private_venv(name: str, *packages: str, alone: bool = False) -> Path:
    """The folder with its programs. Installed on first use. Raises Missing.

    `packages`: each with its version. `alone`: without what they say they need.
    """
    folder = CACHE / name
    complete = folder / "complete"
    python = folder / "bin" / "python"
    wanted = "\n".join(packages)
    if not complete.exists() or complete.read_text() != wanted:
        install = [str(python), "-m", "pip", "install", *(["--no-deps"] if alone else []), *packages]
        for command in ([sys.executable, "-m", "venv", str(folder)], install):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode:
                said = done.stderr.strip().splitlines()[-1:]
                raise Missing(f"{' '.join(command[-3:])} ended with {done.returncode}: {said}")
        complete.write_text(wanted)
    return python.parent
