"""Which processes of earlier lives are alive, by their lock files; and the identity of the directory these lie in."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from pegaflow.common.locks import NONCE_BYTES, ProcessLock
from pegaflow.services.tier.old_locks import IDENTITY, OldLocks, boot_identity, directory_identity
from pegaflow.services.tier.sessions import holder_word


def test_free_locks_go_held_ones_are_asked_until_they_are_free(tmp_path: Path) -> None:
    dead, alive, back = (ProcessLock.acquire(tmp_path) for _ in range(3))
    dead.close()
    freed: list[int] = []
    old = OldLocks(tmp_path, freed.append)
    assert old.held == {holder_word(alive.nonce), holder_word(back.nonce)} and old.dead == {holder_word(dead.nonce)}
    assert {path.name for path in tmp_path.iterdir()} == {alive.name, back.name}
    old.look()
    old.forget(holder_word(back.nonce))  # attached again: a member now
    alive.close()
    back.close()
    old.look()
    assert freed == [holder_word(alive.nonce)]
    assert [path.name for path in tmp_path.iterdir()] == [back.name]
    old.close()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    identity = directory_identity(tmp_path)
    (tmp_path / ("f" * 32)).write_bytes(b"short")
    old = OldLocks(tmp_path, lambda word: None)
    assert (old.held, old.dead) == (frozenset(), set())
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY]
    assert directory_identity(tmp_path) == identity


def test_a_directory_made_anew_is_another_one(tmp_path: Path) -> None:
    first = directory_identity(tmp_path)
    (tmp_path / IDENTITY).unlink()
    assert directory_identity(tmp_path) != first
    assert len(boot_identity()) == 16 and boot_identity() == boot_identity()


def test_a_start_that_was_killed_while_it_made_the_identity_leaves_nothing_behind(tmp_path: Path) -> None:
    killed = """
import os, signal, sys
from pathlib import Path
from pegaflow.services.tier.old_locks import directory_identity

os.link = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
directory_identity(Path(sys.argv[1]))
"""
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    [stray] = tmp_path.iterdir()
    assert stray.name.startswith(f"{IDENTITY}.")
    identity = directory_identity(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY]
    assert len(identity) == NONCE_BYTES and directory_identity(tmp_path) == identity
