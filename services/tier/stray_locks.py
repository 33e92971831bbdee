"""Lock files whose processes nobody watches and that are dead: they died before they had attached, or after they had left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Set
from pathlib import Path

from pegaflow.common.locks import UNLOCKED, is_lock_name, is_locked

STRAY_S = 5.0
UNNAMED_S = 60.0
"""A file without its name yet may belong to a process that is about to lock it."""


class StrayLocks:
    """`watched`: names of the files that members and processes of earlier lives are watched by; those are not touched."""

    def __init__(self, directory: Path, watched: Callable[[], Set[str]]) -> None:
        self._directory, self._watched = directory, watched
        self.removed = 0

    def look(self) -> None:
        """Removes the files of dead processes. Raises nothing for what others remove or may not be opened."""
        watched = self._watched()
        for path in self._directory.iterdir():
            unnamed = path.name.startswith(UNLOCKED)
            if not is_lock_name(path.name.removeprefix(UNLOCKED)) or path.name in watched:
                continue
            try:
                if self._dead(path, UNNAMED_S if unnamed else 0.0):
                    path.unlink()
                    self.removed += 1
            except OSError:  # gone meanwhile, or not ours: a tier that cannot open a lock has let nobody in with it
                continue

    @staticmethod
    def _dead(path: Path, age_s: float) -> bool:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            old = time.time() - os.fstat(fd).st_mtime >= age_s
            return old and not is_locked(fd)
        finally:
            os.close(fd)
