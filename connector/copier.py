"""What the rank half needs from whoever copies its pages.

    block b of all layers  ──store──▶  page at an offset of the pool       (save)
    page at an offset      ──fetch──▶  block b of all layers               (load)

A call returns when its bytes are where they belong: nothing of it is still under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pegaflow.common.pages import PageLayout

PIN_BYTES = 64 << 20
"""Pinned at a time. No single copy of a device crosses a multiple of it."""


class Copier(ABC):
    """`layout`: of the pages that it writes and reads. `on_device`: a device copies, and may go on when the process is dying."""

    layout: PageLayout
    on_device = False

    @abstractmethod
    def mark(self) -> object:
        """A point in vLLM's queue of work, taken in vLLM's thread: copies that get it start behind that point."""

    @abstractmethod
    def store(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        """Block i → the page at `offsets[i]` bytes of the pool."""

    @abstractmethod
    def fetch(self, memory: memoryview, blocks: Sequence[int], offsets: Sequence[int], mark: object) -> None:
        """The page at `offsets[i]` bytes of the pool → block i."""

    def pin(self, memory: memoryview, start: int, length: int) -> None:
        """These bytes of the pool have memory now: a device pins them. `start` is a multiple of PIN_BYTES, `length` at most that.

        Raises where that fails; copies work all the same, only slower.
        """
        return

    def unpin(self) -> None:
        """The pool is about to be unmapped; no copy is under way."""
        return
