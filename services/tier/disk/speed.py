"""How fast the disk is where pages lie: one file written and read, aligned and without the page cache, as pages are."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

BLOCK_BYTES = 4 << 20


def measure(folder: Path, size: int) -> dict[str, float | int]:
    """Bytes a second of sequential writes, with fsync, and of reads. Blocks; the file is gone afterwards. Raises OSError."""
    size = max(size // BLOCK_BYTES, 1) * BLOCK_BYTES
    path = folder / f".speed.{os.getpid()}.{os.urandom(4).hex()}"
    memory = mmap.mmap(-1, BLOCK_BYTES)
    memory.write(os.urandom(BLOCK_BYTES))
    direct = os.O_DIRECT
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW | direct, 0o600)
    except OSError:  # tmpfs and some network file systems have no direct I/O
        direct = 0
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        path.unlink()  # whatever happens now, nothing stays behind
        begun = time.monotonic()
        for offset in range(0, size, BLOCK_BYTES):
            os.pwrite(fd, memory, offset)
        os.fsync(fd)
        written = time.monotonic()
        for offset in range(0, size, BLOCK_BYTES):
            os.preadv(fd, [memory], offset)
        read = time.monotonic()
    finally:
        os.close(fd)
        memory.close()
    return {
        "bytes": size,
        "direct": int(bool(direct)),
        "write_bytes_per_s": round(size / max(written - begun, 1e-9)),
        "read_bytes_per_s": round(size / max(read - written, 1e-9)),
    }
