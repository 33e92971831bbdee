"""Lock files that nobody watches: those of the dead go, all others stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pegaflow.common.locks import UNLOCKED, ProcessLock
from pegaflow.services.tier.old_locks import IDENTITY, directory_identity
from pegaflow.services.tier.stray_locks import UNNAMED_S, StrayLocks


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_only_what_is_free_and_unwatched_goes(tmp_path: Path) -> None:
    directory_identity(tmp_path)
    alive, dead, watched = (ProcessLock.acquire(tmp_path) for _ in range(3))
    dead.close()
    watched.close()
    (tmp_path / "notes").touch()
    (tmp_path / ("a" * 32)).symlink_to(tmp_path / "notes")
    strays = StrayLocks(tmp_path, lambda: {watched.name})
    strays.look()
    strays.look()
    assert names(tmp_path) == {IDENTITY, "notes", "a" * 32, alive.name, watched.name} and strays.removed == 1
    alive.close()
    strays.look()
    assert alive.name not in names(tmp_path)


def test_a_file_that_is_about_to_be_locked_is_left_alone_for_a_while(tmp_path: Path) -> None:
    unnamed = tmp_path / f"{UNLOCKED}{'b' * 32}"
    unnamed.touch(mode=0o600)
    strays = StrayLocks(tmp_path, set)
    strays.look()
    assert unnamed.exists()
    long_ago = time.time() - UNNAMED_S - 1
    os.utime(unnamed, (long_ago, long_ago))
    strays.look()
    assert not unnamed.exists()


def test_a_lock_file_has_its_name_only_when_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_then_refuse(fd: int) -> bool:
        [made] = tmp_path.iterdir()
        assert made.name.startswith(UNLOCKED)
        return False

    monkeypatch.setattr("pegaflow.common.locks.try_lock", look_then_refuse)
    with pytest.raises(Exception, match="local file system"):
        ProcessLock.acquire(tmp_path)
    assert names(tmp_path) == set()
