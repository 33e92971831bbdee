"""Which packages a level of set-up has, and the stamp by which a later call knows that it is done."""

from __future__ import annotations

import hashlib
import json
import platform
import tomllib
from enum import StrEnum
from pathlib import Path

from environment.checkout import CHECKOUT, CONFIGS, VENV


class Level(StrEnum):
    BASE = "base"
    FULL = "full"

    @property
    def requirement_files(self) -> list[Path]:
        names = ["services", "tier", "dev"] + (["cpu"] if self is Level.FULL else [])
        return [CONFIGS / f"requirements-{name}.txt" for name in names]


def stamp(level: Level) -> str:
    """Changes when a set-up of `level` has to run again."""
    digest = hashlib.sha256(f"{level} {platform.python_version()} {CHECKOUT}\n".encode())
    for path in level.requirement_files:
        digest.update(path.read_bytes())
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    # What the editable install was made from; settings of tools may change freely.
    installed = [project["build-system"], project["project"], project["tool"]["setuptools"]]
    digest.update(json.dumps(installed, sort_keys=True).encode())
    return digest.hexdigest()


def is_done(level: Level) -> bool:
    """True when .venv was completed for `level` with today's requirements."""
    path = _stamp_file(level)
    return path.exists() and path.read_text() == stamp(level)


def mark_done(level: Level) -> None:
    for other in Level:
        _stamp_file(other).unlink(missing_ok=True)
    for covered in [Level.BASE, level]:
        _stamp_file(covered).write_text(stamp(covered))


def mark_begun() -> None:
    """An interrupted set-up is not taken for a finished one."""
    for level in Level:
        _stamp_file(level).unlink(missing_ok=True)


def _stamp_file(level: Level) -> Path:
    return VENV / f"pegaflow-{level}.stamp"
