"""Process locks: who is dead, and what does not prove it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pegaflow.common.locks import FOREIGN_S, LockProbe
from pegaflow.common.wire.errors import RemoteError

HOLD = """
import sys
from pathlib import Path
from pegaflow.common.locks import ProcessLock
lock = ProcessLock.acquire(Path(sys.argv[1]))
print(lock.name, lock.nonce.hex(), flush=True)
if sys.stdin.readline().strip() == "close":
    lock.close()
    print("closed", flush=True)
sys.stdin.readline()
"""


class Holder:
    """A process of its own that holds a lock."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-c", HOLD, str(directory)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.name, nonce = self.process.stdout.readline().split()
        self.nonce = bytes.fromhex(nonce)

    def drop(self) -> None:
        """Closes its lock and lives on."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("close\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "closed\n"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path)
    yield made
    made.end()


def test_a_free_lock_is_the_proof_of_death(tmp_path: Path, holder: Holder) -> None:
    probe = LockProbe(tmp_path, holder.name, holder.nonce)
    assert not probe.dead(0.0)
    holder.process.kill()
    holder.process.wait()
    assert probe.dead(0.0)
    probe.unlink()
    assert list(tmp_path.iterdir()) == []
    probe.close()


def test_where_a_device_copies_the_process_itself_must_be_gone(tmp_path: Path, holder: Holder) -> None:
    probe = LockProbe(tmp_path, holder.name, holder.nonce, holder.process.pid)
    holder.drop()
    assert not probe.held()
    assert not probe.dead(1000.0), "the lock is free, the process still runs"
    holder.process.kill()
    holder.process.wait()
    assert probe.dead(1000.0)
    probe.close()


def test_a_pid_of_another_namespace_proves_nothing_and_time_has_to_do(tmp_path: Path, holder: Holder) -> None:
    probe = LockProbe(tmp_path, holder.name, holder.nonce, 1)  # a process that does not have the lock file open
    holder.drop()
    assert not probe.dead(100.0)
    assert not probe.dead(100.0 + FOREIGN_S - 0.1)
    assert probe.dead(100.0 + FOREIGN_S)
    probe.close()


@pytest.mark.parametrize(("name", "code"), [("../x", "bad_member"), ("g" * 32, "bad_member"), ("0" * 32, "lock_not_visible")])
def test_other_names_are_refused(tmp_path: Path, name: str, code: str) -> None:
    with pytest.raises(RemoteError) as told:
        LockProbe(tmp_path, name, b"n" * 16)
    assert told.value.code == code


def test_a_link_another_nonce_and_an_unlocked_file_are_refused(tmp_path: Path, holder: Holder) -> None:
    with pytest.raises(RemoteError, match="nonce"):
        LockProbe(tmp_path, holder.name, b"n" * 16)
    os.symlink(tmp_path / holder.name, tmp_path / ("a" * 32))
    with pytest.raises(RemoteError):
        LockProbe(tmp_path, "a" * 32, holder.nonce)
    holder.drop()
    with pytest.raises(RemoteError, match="not seen held"):
        LockProbe(tmp_path, holder.name, holder.nonce)
