"""The mover's lock: held as long as its process lives; left-over movers are killed only when they are proven to be ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pegaflow.services.tier.mover import lock as mover_lock
from pegaflow.services.tier.mover.lock import LockBusy

TOKEN = "0123456789abcdef" * 2

_HOLDER = """
import sys, time
from pathlib import Path
from pegaflow.services.tier.mover import lock as mover_lock
fd = mover_lock.take(Path(sys.argv[1]))
if len(sys.argv) > 2:
    import os
    os.ftruncate(fd, 0)
    os.pwrite(fd, sys.argv[2].encode(), 0)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def holder(path: Path, *content: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock, like a mover whose parent died."""
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(path), *content], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    mover_lock.directory(tmp_path).mkdir(mode=0o700)
    return mover_lock.path_for(tmp_path, TOKEN)


def test_a_lock_is_seen_held_until_its_process_ends(lock: Path) -> None:
    with holder(lock) as process:
        fd = os.open(lock, os.O_RDWR)
        try:
            assert mover_lock.held(fd)
            pid, started = map(int, os.pread(fd, 64, 0).split())
            assert (pid, started) == (process.pid, mover_lock.start_time(process.pid))
            process.kill()
            process.wait()
            assert not mover_lock.held(fd)
        finally:
            os.close(fd)


def test_a_name_serves_once(lock: Path) -> None:
    fd = mover_lock.take(lock)
    with pytest.raises(FileExistsError):
        mover_lock.take(lock)
    os.close(fd)


def test_a_left_over_mover_is_killed_and_its_lock_cleared(tmp_path: Path, lock: Path) -> None:
    with holder(lock) as process:
        assert mover_lock.end_left_overs(tmp_path, 10.0) == [process.pid]
        assert process.wait() == -9
    assert not lock.exists()


def test_a_free_lock_is_only_cleared(tmp_path: Path, lock: Path) -> None:
    os.close(mover_lock.take(lock))
    assert mover_lock.end_left_overs(tmp_path, 10.0) == []
    assert not lock.exists()


@pytest.mark.parametrize("content", ["{pid} 1\n", "", "nonsense\n", "99999999 5\n"])
def test_a_stranger_is_not_killed_but_blocks(tmp_path: Path, lock: Path, content: str) -> None:
    with holder(lock, content.format(pid=os.getpid())) as process:
        with pytest.raises(LockBusy, match=TOKEN):
            mover_lock.end_left_overs(tmp_path, 0.05)
        assert process.poll() is None
        assert lock.exists()


def test_other_files_are_left_alone_and_links_are_not_followed(tmp_path: Path, lock: Path) -> None:
    other = lock.with_name("notes.txt")
    other.write_text("mine")
    assert mover_lock.end_left_overs(tmp_path, 0.05) == []
    assert other.read_text() == "mine"
    lock.symlink_to(other)
    with pytest.raises(LockBusy):
        mover_lock.end_left_overs(tmp_path, 0.05)
    assert other.read_text() == "mine"


def test_start_time_of_no_process_is_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert mover_lock.start_time(process.pid) is None
    assert mover_lock.start_time(os.getpid()) is not None
