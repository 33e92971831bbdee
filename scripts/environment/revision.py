"""Which commit a checkout holds."""

from __future__ import annotations

import subprocess
from pathlib import Path


def revision(checkout: Path) -> dict[str, str]:
    """`commit`, and `dirty`: yes if something in it is not committed. Either is `unknown` where that cannot be told."""
    changed = _git(checkout, "status", "--porcelain")
    dirty = "unknown" if changed is None else "yes" if changed else "no"
    return {"commit": _git(checkout, "rev-parse", "HEAD") or "unknown", "dirty": dirty}


def _git(checkout: Path, *command: str) -> str | None:
    """None where that is no repository, or git is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", checkout, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
