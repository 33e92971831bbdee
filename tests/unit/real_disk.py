"""Files of a disk level in a real directory, under a pool of anonymous memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import xxhash
from pegaflow.common.pool import GRANULE
from pegaflow.services.tier.disk.cipher import Cipher
from pegaflow.services.tier.disk.files import DiskFiles
from pegaflow.services.tier.disk.record import Record
from tier_script import key

SEGMENT = 1 << 20


class Disk:
    """Real files under a pool of 64 granules of anonymous memory."""

    def __init__(self, folder: Path, cipher: Cipher | None = None) -> None:
        self.mapping = mmap.mmap(-1, 64 * GRANULE)
        self.memory = memoryview(self.mapping)
        self.folder = folder
        self.files = DiskFiles(folder, self.memory, cipher)

    def put(self, number: int, slot: int, segment: int = 1, length: int = GRANULE - 100) -> Record:
        page = (b"%08d" % number) * (GRANULE // 8)
        self.memory[slot * GRANULE : (slot + 1) * GRANULE] = page
        digest = xxhash.xxh3_128_digest(page[:length])
        return Record(key(number), segment, number * GRANULE, (length,), 16, (digest,))

    def sum(self, slot: int, length: int) -> bytes:
        """Of what is in a slot."""
        return bytes(xxhash.xxh3_128_digest(self.memory[slot * GRANULE : slot * GRANULE + length]))

    def restart(self, cipher: Cipher | None = None) -> DiskFiles:
        self.files.close()
        self.files = DiskFiles(self.folder, self.memory, cipher)
        return self.files

    def close(self) -> None:
        self.files.close()
        self.memory.release()
        self.mapping.close()
