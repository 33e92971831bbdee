"""Something else under the name of one of our files: not followed, not blocked on, not written, and no start that fails for ever.

Only processes of the same user get this far; a faulty one, or an engine that was taken over, must not stop or mislead the tier.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pegaflow.common.locks import LockProbe, ProcessLock
from pegaflow.common.pool import GRANULE, Pool
from pegaflow.common.private import private_directory, read_secret
from pegaflow.common.slot_table import Identity
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError
from pegaflow.services.tier.old_locks import IDENTITY, OldLocks, directory_identity
from real_disk import SEGMENT, Disk

PRECIOUS = b"precious" * 4


def plant_symlink(path: Path, target: Path) -> None:
    path.symlink_to(target)


def plant_dangling(path: Path, target: Path) -> None:
    path.symlink_to(target.with_name("nowhere"))


def plant_hard_link(path: Path, target: Path) -> None:
    os.link(target, path)


def plant_fifo(path: Path, target: Path) -> None:
    os.mkfifo(path, 0o600)


def plant_directory(path: Path, target: Path) -> None:
    path.mkdir(mode=0o700)


def plant_socket(path: Path, target: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the paths of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


PLANTS = [plant_symlink, plant_dangling, plant_hard_link, plant_fifo, plant_directory, plant_socket]
Plant = Callable[[Path, Path], None]
each_plant = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.removeprefix("plant_"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "target"
    made.write_bytes(PRECIOUS)
    made.chmod(0o600)
    return made


@each_plant
def test_a_lock_file_that_is_none_lets_nobody_in(tmp_path: Path, target: Path, plant: Plant) -> None:
    folder = private_directory(tmp_path / "r" / "sessions")
    plant(folder / ("a" * 32), target)
    with pytest.raises(RemoteError) as told:
        LockProbe(folder, "a" * 32, PRECIOUS[:16])
    assert told.value.code in (ErrorCode.BAD_MEMBER, ErrorCode.LOCK_NOT_VISIBLE)
    assert target.read_bytes() == PRECIOUS


@pytest.mark.parametrize(
    "name", ["../" + "a" * 29, "a" * 31 + "/", ".." + "/" * 30, "a" * 31 + "\0", "A" * 32, "", "a" * 33, "é" * 16]
)
def test_a_name_that_leads_elsewhere_is_no_lock_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(RemoteError) as told:
        LockProbe(tmp_path, name, bytes(16))
    assert told.value.code == ErrorCode.BAD_MEMBER


@each_plant
def test_a_start_reads_the_locks_of_processes_past_it(tmp_path: Path, target: Path, plant: Plant) -> None:
    folder = tmp_path / "r" / "sessions"
    lock = ProcessLock.acquire(folder)
    plant(folder / ("0" * 32), target)
    plant(folder / ("f" * 32), target)
    old = OldLocks(folder, lambda word: None)
    assert len(old.held) == 1, "the one that is a lock is still asked about"
    old.look()
    old.close()
    lock.close()
    assert target.read_bytes() == PRECIOUS


@each_plant
def test_a_runtime_directorys_identity_that_is_none_is_told_and_not_waited_for(
    tmp_path: Path, target: Path, plant: Plant
) -> None:
    folder = private_directory(tmp_path / "sessions")
    plant(folder / IDENTITY, target)
    with pytest.raises(LocalError) as told:
        directory_identity(folder)
    assert told.value.code == ErrorCode.UNSAFE_PATH and IDENTITY in told.value.text
    assert target.read_bytes() == PRECIOUS


IDENTITY_OF_POOL = Identity(64 * GRANULE, 16, b"b" * 16, b"s" * 16)


@each_plant
@pytest.mark.parametrize("name", ["pool-0000000000000001", "table-0000000000000001"])
def test_what_has_the_name_of_an_old_pool_is_not_taken_over(tmp_path: Path, target: Path, plant: Plant, name: str) -> None:
    folder = private_directory(tmp_path / "pool")
    plant(folder / name, target)
    pool = Pool.open(folder, IDENTITY_OF_POOL, 7)
    assert not pool.adopted and pool.path.name == f"pool-{7:016x}"
    pool.close(keep=False)
    assert target.read_bytes() == PRECIOUS


@each_plant
def test_a_pools_lock_that_is_none_is_told(tmp_path: Path, target: Path, plant: Plant) -> None:
    folder = private_directory(tmp_path / "pool")
    plant(folder / "lock", target)
    with pytest.raises(LocalError) as told:
        Pool.open(folder, IDENTITY_OF_POOL, 7)
    assert told.value.code == ErrorCode.UNSAFE_PATH
    assert target.read_bytes() == PRECIOUS


@each_plant
@pytest.mark.parametrize("suffix", ["pages", "log"])
def test_what_has_the_name_of_a_segment_is_neither_read_nor_written(
    tmp_path: Path, target: Path, plant: Plant, suffix: str
) -> None:
    disk = Disk(tmp_path / "disk")
    disk.files.write([disk.put(0, 0)], [[0]], SEGMENT)
    path = disk.folder / f"{1:016x}.{suffix}"
    path.unlink()
    plant(path, target)
    files = disk.restart()
    assert files.load(1) is None
    record = disk.put(3, 3, segment=2)
    files.write([record], [[3]], SEGMENT)
    assert files.read([record], [[4]]) == [list(record.checksums)], "others are served"
    disk.close()
    assert target.read_bytes() == PRECIOUS


@each_plant
@pytest.mark.parametrize("name", ["lock", "probe"])
def test_the_disks_own_files_are_never_somebody_elses(tmp_path: Path, target: Path, plant: Plant, name: str) -> None:
    disk = Disk(tmp_path / "disk")
    disk.files.close()
    (disk.folder / name).unlink(missing_ok=True)
    plant(disk.folder / name, target)
    try:
        disk.restart()
    except LocalError as error:
        assert error.code == ErrorCode.DISK_REFUSED
    disk.close()
    assert target.read_bytes() == PRECIOUS


@each_plant
def test_a_secret_is_read_from_a_file_only(tmp_path: Path, target: Path, plant: Plant) -> None:
    target.chmod(0o640)
    path = tmp_path / "key"
    plant(path, target)
    with pytest.raises(LocalError) as told:
        read_secret(path)
    assert told.value.code == ErrorCode.UNSAFE_PATH
