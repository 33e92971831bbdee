"""Which pages: their keys, and the memory of a client that holds their bytes. Needs nothing but Python, see `client`."""

from __future__ import annotations

import ctypes
import mmap
import random

FINGERPRINT = b"bench-fingerpri!"
STAMP = len(FINGERPRINT) + 32
"""Bytes of a key; each page begins with its own."""


def batch_keys(seed: int, count: int) -> list[bytes]:
    """The same in every process, as wide as sha256 makes them."""
    data = random.Random(seed).randbytes(32 * count)
    return [FINGERPRINT + data[i : i + 32] for i in range(0, len(data), 32)]


class Batch:
    """`pages` pages side by side, in huge pages where the kernel has them. `at`: address of the first byte."""

    def __init__(self, pages: int, page_bytes: int) -> None:
        self.pages, self.page_bytes = pages, page_bytes
        self.memory = mmap.mmap(-1, pages * page_bytes)
        self.memory.madvise(mmap.MADV_HUGEPAGE)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def fill(self) -> None:
        """Bytes that differ from page to page, the same in every process."""
        self.memory[:] = random.Random(self.page_bytes).randbytes(len(self.memory))

    def stamp(self, keys: list[bytes]) -> None:
        """Page i begins with key i, so that no two pages of a run are equal."""
        for place, key in enumerate(keys):
            self.memory[place * self.page_bytes : place * self.page_bytes + STAMP] = key

    def clear(self) -> None:
        self.memory[:] = bytes(len(self.memory))

    def copy(self, source: Batch, pages: int) -> None:
        """The first pages of `source`, page by page: what memory allows."""
        for start in range(0, pages * self.page_bytes, self.page_bytes):
            ctypes.memmove(self.at + start, source.at + start, self.page_bytes)

    def differ(self, other: Batch, pages: int) -> int:
        """How many of the first pages are not those of the other."""
        size = self.page_bytes
        starts = range(0, pages * size, size)
        return sum(self.memory[start : start + size] != other.memory[start : start + size] for start in starts)
