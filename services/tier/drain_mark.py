"""That a node drains outlives the life of its tier: a mark in the runtime directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

NAME: Final = "draining"
_HAND_OVER: Final = "hand_over"


class DrainMark:
    """One file, which says that the node drains, and whether it hands its pages over. Raises OSError."""

    def __init__(self, runtime_dir: Path) -> None:
        self._path = runtime_dir / NAME

    def read(self) -> bool | None:
        """`hand_over`; None: it does not drain."""
        try:
            return self._path.read_text(encoding="ascii").strip() == _HAND_OVER
        except FileNotFoundError:
            return None

    def set(self, hand_over: bool) -> None:
        fresh = self._path.with_name(f"{NAME}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(_HAND_OVER if hand_over else "stay")
        fresh.replace(self._path)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
