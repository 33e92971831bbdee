"""What the rank half needs from whoever copies its pages.

    block b of all layers  ──store──▶  page at an offset of the pool       (save)
    page at an offset      ──fetch──▶  block b of all layers               (load)

A call returns when its bytes are where they belong: nothing of it is still under way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pegaflow.common.pages import PageLayout


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

    @abstractmethod
    def pin(self, memory: memoryview | None) -> None:
        """The pool is mapped (or about to be unmapped: None). A GPU pins its memory."""
