"""Which keys begin with these bytes, pure: people ask, so it is looked for bit by bit, and nobody else waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pegaflow.common.wire.messages.inspection import MAX_FOUND, Find, Found
from pegaflow.services.tier.commands import Command, Reply
from pegaflow.services.tier.disk.level import DiskLevel
from pegaflow.services.tier.disk.round import DiskRound
from pegaflow.services.tier.pages import NAMESPACE_BYTES, Pages
from pegaflow.services.tier.round import Round

SLICE = 8192  # keys looked at in one event (or those of one slab more)


@dataclass(slots=True, eq=False)
class _Search:
    asker: Any
    prefix: bytes
    memory: Round
    disk: DiskRound
    keys: dict[bytes, None] = field(default_factory=dict)


class Finds:
    """Searches that have no answer yet, one after the other."""

    def __init__(self, pages: Pages, disk: DiskLevel, out: list[Command]) -> None:
        self._pages, self._disk, self._out = pages, disk, out
        self._open: list[_Search] = []

    def find(self, asker: Any, message: Find) -> None:
        """Answers at once where there is little to look at, else after some `resume`."""
        memory, disk = Round(self._pages.allocator), DiskRound(self._disk.index)
        self._open.append(_Search(asker, message.prefix, memory, disk))
        if len(self._open) == 1:
            self.resume()

    def resume(self) -> None:
        """The next slice."""
        if not self._open:
            return
        search, budget = self._open[0], SLICE
        while budget > 0 and not self._ended(search):
            budget -= self._look(search, budget)
        if self._ended(search):
            keys = [key.hex() for key in search.keys]
            self._out.append(Reply(search.asker, Found(keys[:MAX_FOUND], len(keys) > MAX_FOUND)))
            self._open.pop(0)

    @property
    def behind(self) -> bool:
        """There is more to look at: `resume`."""
        return bool(self._open)

    @staticmethod
    def _ended(search: _Search) -> bool:
        return len(search.keys) > MAX_FOUND or (search.memory.over and search.disk.over)

    def _look(self, search: _Search, budget: int) -> int:
        """How many keys it has looked at."""
        # PERF: `in` first, some 30 ns a key, then the exact question about the few that are left.
        prefix, index = search.prefix, self._pages.index
        if not search.memory.over:
            pages = search.memory.next(budget)
            near = [page.key for page in pages if prefix in page.key and index.get(page.key) is page]
            count = len(pages)
        else:
            keys = search.disk.next(budget)
            near, count = [key for key in keys if prefix in key], len(keys)
        search.keys.update((key, None) for key in near if key.startswith(prefix) or key.startswith(prefix, NAMESPACE_BYTES))
        return count
