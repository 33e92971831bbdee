"""Segments as files: the bytes of pages and the logs of their records, straight between the pool and the disk.

    <disk_dir>/<node>/   lock │ <16 hex>.pages │ <16 hex>.log        0700, files 0600, nothing else is touched

O_DIRECT where the file system takes it: the pool's slots are aligned, so no bytes are copied on the way and the kernel's cache
keeps what is of use elsewhere. Else through that cache, which is then told that the bytes are not wanted. How they stand there
says coding.py.
Everything here blocks; `threads.DiskThreads` calls it off the event loop.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from pegaflow.common import faults
from pegaflow.common.fault_points import Point
from pegaflow.common.locks import try_lock
from pegaflow.common.pool import GRANULE
from pegaflow.common.private import open_own, private_directory
from pegaflow.common.wire.errors import ErrorCode, LocalError
from pegaflow.services.tier.disk.cipher import Cipher
from pegaflow.services.tier.disk.coding import BAD, Coding, checksums
from pegaflow.services.tier.disk.record import ALIGN, Record, aligned

_NAME: Final = re.compile(r"([0-9a-f]{16})\.(pages|log)")
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_VECTORS: Final = 512
_RUN_BYTES: Final = 1 << 20
"""Read in one request: enough that a disk is busy, and little enough that its bytes are verified while they are near."""


class DiskFiles:
    """The files of one tier's disk level; locked for life. Threads may call `write` and `read` at the same time.

    `direct`: O_DIRECT is in use. `found`: segments of an earlier life. `foreign`: names in the directory that are not ours.
    """

    def __init__(self, directory: Path, memory: memoryview, cipher: Cipher | None = None) -> None:
        """Raises `disk_busy` if another tier uses the directory, `disk_refused` if it cannot be used."""
        self._memory = memory
        self._lock = Lock()
        self._fds: dict[int, int] = {}
        self._logs: dict[int, int] = {}
        self.coding = Coding(cipher)
        try:
            private_directory(directory)
            self._dir = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except LocalError as error:
            raise LocalError(ErrorCode.DISK_REFUSED, error.text) from None
        except OSError as error:
            raise LocalError(ErrorCode.DISK_REFUSED, f"{directory}: {error.strerror}") from None
        self._lock_fd = -1
        try:
            faults.reach(Point.TIER_START_BEFORE_DISK_LOCK)
            self._lock_fd = self._own("lock", os.O_CREAT)
            if not try_lock(self._lock_fd):
                raise LocalError(ErrorCode.DISK_BUSY, f"another tier uses the disk directory {directory}")
            self.direct = self._takes_direct()
            names = [_NAME.fullmatch(name) for name in os.listdir(self._dir)]
            self.foreign = sum(name is None for name in names) - 1
            self.found = sorted({int(name[1], 16) for name in names if name is not None})
        except OSError as error:
            self.close()
            raise LocalError(ErrorCode.DISK_REFUSED, f"{directory}: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    def _open(self, name: str, flags: int) -> int:
        return os.open(name, _FLAGS | flags, 0o600, dir_fd=self._dir)

    def _own(self, name: str, flags: int) -> int:
        try:
            return open_own(name, os.O_RDWR | flags, self._dir)
        except LocalError as error:
            raise LocalError(ErrorCode.DISK_REFUSED, error.text) from None

    def _takes_direct(self) -> bool:
        self._unlink("probe")  # of a start that was killed; what else has this name is not to be written to
        fd = self._open("probe", os.O_CREAT | os.O_EXCL)
        try:
            direct = self._open("probe", os.O_DIRECT)
            try:
                os.pwritev(direct, [self._memory[:ALIGN]], 0)
                return True
            finally:
                os.close(direct)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            return False
        finally:
            os.close(fd)
            os.unlink("probe", dir_fd=self._dir)

    # --- an earlier life ---------------------------------------------------------------------------------------------

    def load(self, number: int) -> tuple[int, list[Record], int] | None:
        """Bytes and records of a segment of an earlier life, and bytes of its log that are torn. None: no use, and removed."""
        try:
            fd = self._fds[number] = self._own(f"{number:016x}.pages", self._direct_flag)
            log = self._logs[number] = self._own(f"{number:016x}.log", 0)
            faults.reach(Point.TIER_SEGMENT_BEFORE_READ)
            data = bytearray()
            while part := os.pread(log, 16 << 20, len(data)):
                data += part
        except (OSError, LocalError):
            self.drop(number)
            return None
        except BaseException:
            self._shut(number)
            raise
        decoded = self.coding.decode(bytes(data), number, os.fstat(fd).st_size)
        if decoded is None or not decoded[0]:
            self.drop(number)
            return None
        records, torn = decoded
        size = max(record.offset + record.extent for record in records)
        with suppress(OSError):  # what was set aside behind the last page is free again
            os.ftruncate(fd, size)
        return size, records, torn

    @property
    def _direct_flag(self) -> int:
        return os.O_DIRECT if self.direct else 0

    # --- pages -------------------------------------------------------------------------------------------------------

    def write(self, records: Sequence[Record], slots: Sequence[Sequence[int]], segment_bytes: int) -> None:
        """Pages of one segment, then their records; makes the segment if need be. Raises `OSError`: none of them counts."""
        fd, log = self._segment(records[0].segment, segment_bytes)
        faults.reach(Point.TIER_DISK_WRITE_BEFORE_PAGES)
        at = start = records[0].offset
        views: list[memoryview] = []
        room, filled = self.coding.buffer(sum(record.extent for record in records)), 0
        entries: list[bytes] = []
        try:
            for record, mine in zip(records, slots, strict=True):
                if record.offset != at or len(views) + len(mine) > _MAX_VECTORS:
                    self._out(fd, views, start)
                    at = start = record.offset
                out, entry = self.coding.outgoing(record, self._views(record, mine), room[filled : filled + record.extent])
                views += out
                entries.append(entry)
                filled += record.extent
                at += record.extent
            self._out(fd, views, start)
        finally:
            for view in views:
                view.release()
        faults.reach(Point.TIER_DISK_WRITE_BEFORE_LOG)
        data = b"".join(entries)
        if os.write(log, data) != len(data):
            raise OSError(errno.ENOSPC, "the log is cut short")
        faults.reach(Point.TIER_DISK_WRITE_AFTER_LOG)

    def _views(self, record: Record, slots: Sequence[int]) -> list[memoryview]:
        """What goes to disk or comes from there, part by part."""
        starts = [slot * GRANULE for slot in slots]
        return [self._memory[start : start + aligned(length)] for start, length in zip(starts, record.lengths, strict=True)]

    def _out(self, fd: int, views: list[memoryview], offset: int) -> None:
        size = sum(map(len, views))
        if os.pwritev(fd, views, offset) != size:
            raise OSError(errno.ENOSPC, "cut short")
        for view in views:
            view.release()
        views.clear()
        if not self.direct:
            os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)

    def _segment(self, number: int, size: int) -> tuple[int, int]:
        """Descriptors of a segment, made and set aside in full at its first page, so that a full disk shows there."""
        with self._lock:
            if number in self._fds:
                return self._fds[number], self._logs[number]
            pages, log = f"{number:016x}.pages", f"{number:016x}.log"
            fd = self._open(pages, os.O_CREAT | os.O_EXCL | self._direct_flag)
            log_fd = -1
            try:
                os.posix_fallocate(fd, 0, size)
                faults.reach(Point.TIER_DISK_SEGMENT_BEFORE_LOG)
                log_fd = self._open(log, os.O_CREAT | os.O_EXCL | os.O_APPEND)
                os.write(log_fd, self.coding.begin(number))
            except BaseException:
                os.close(fd)
                os.unlink(pages, dir_fd=self._dir)
                if log_fd >= 0:
                    os.close(log_fd)
                    os.unlink(log, dir_fd=self._dir)
                raise
            self._fds[number], self._logs[number] = fd, log_fd
            return fd, log_fd

    def read(self, records: Sequence[Record], slots: Sequence[Sequence[int]]) -> list[list[bytes] | str]:
        """Fills the slots; per page the checksums of its parts as they are in memory then, or a code."""
        faults.reach(Point.TIER_DISK_READ_BEFORE_BYTES)
        found: list[list[bytes] | str] = [""] * len(records)
        for run in _runs(records):
            together = (
                len(run) > 1
                and not self.coding.sealed
                and self._read_together([records[place] for place in run], [slots[place] for place in run])
            )
            for place in run:  # PERF: one request to the disk per run; what is read anew page by page is only what failed so
                found[place] = self._read(records[place], slots[place], there=together)
        faults.reach(Point.TIER_DISK_READ_BEFORE_REPORT)
        return found

    def _read_together(self, records: Sequence[Record], slots: Sequence[Sequence[int]]) -> bool:
        """Pages that are neighbours on disk; False: not all of their bytes came, so that each has to be read alone."""
        views = [view for record, mine in zip(records, slots, strict=True) for view in self._views(record, mine)]
        try:
            return os.preadv(self._fds[records[0].segment], views, records[0].offset) == sum(map(len, views))
        except OSError:
            return False
        finally:
            for view in views:
                view.release()

    def _read(self, record: Record, slots: Sequence[int], there: bool) -> list[bytes] | str:
        """`there`: its bytes are in the slots already. A tag that does not fit is told like a checksum that does not."""
        fd = self._fds[record.segment]
        views = self._views(record, slots)
        try:
            if self.coding.sealed:
                room = self.coding.buffer(record.extent)
                if os.preadv(fd, [room], record.offset) != record.extent:
                    return "truncated"
                if not self.coding.opened(record, room, views):
                    return BAD
            elif not there and os.preadv(fd, views, record.offset) != record.extent:
                return "truncated"
            return checksums(record, views)
        except OSError as error:
            return code_of(error)
        finally:
            for view in views:
                view.release()
            if not self.direct:
                os.posix_fadvise(fd, record.offset, record.extent, os.POSIX_FADV_DONTNEED)

    def drop(self, number: int) -> None:
        """Removes a segment, whether it is there or not."""
        faults.reach(Point.TIER_DISK_DROP_BEFORE_UNLINK)
        self._shut(number)
        self._unlink(f"{number:016x}.log")  # a log without pages says nothing; pages without a log are removed at the next start
        faults.reach(Point.TIER_DISK_DROP_AFTER_LOG)
        self._unlink(f"{number:016x}.pages")

    def _shut(self, number: int) -> None:
        with self._lock:
            fds = [self._fds.pop(number, -1), self._logs.pop(number, -1)]
            self.coding.drop(number)
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def _unlink(self, name: str) -> None:
        with suppress(OSError):  # not there, or not ours to remove
            os.unlink(name, dir_fd=self._dir)

    def close(self) -> None:
        """Closes everything and gives up the lock. The files stay."""
        for fd in [*self._fds.values(), *self._logs.values(), self._lock_fd, self._dir]:
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
        self._logs.clear()
        self._lock_fd = self._dir = -1


def _runs(records: Sequence[Record]) -> list[list[int]]:
    """Places of records that are neighbours on disk, in their order there: a chain is written from its end."""
    runs: list[list[int]] = []
    size = vectors = end = 0
    for place in sorted(range(len(records)), key=lambda place: (records[place].segment, records[place].offset)):
        record = records[place]
        size, vectors = size + record.extent, vectors + len(record.lengths)
        follows = bool(runs) and (records[runs[-1][-1]].segment, end) == (record.segment, record.offset)
        if not follows or size > _RUN_BYTES or vectors > _MAX_VECTORS:
            runs.append([])
            size, vectors = record.extent, len(record.lengths)
        runs[-1].append(place)
        end = record.offset + record.extent
    return runs


def code_of(error: OSError) -> str:
    """For counting: what is wrong with the disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "disk_full"
    return "io_error"
