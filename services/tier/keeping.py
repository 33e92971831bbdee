"""What people ask of the space, pure: which keys are here, and which are to stay for a while."""

from __future__ import annotations

from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.messages.catalogue import DISK, MEMORY
from pegaflow.common.wire.messages.space import FETCHING, PENDING, SEALED, UNKNOWN, Keep, Kept, Probe, Probed, Unkeep
from pegaflow.services.tier.disk.level import DiskLevel
from pegaflow.services.tier.page import PageState
from pegaflow.services.tier.pages import Pages

_PROBED = {PageState.PENDING: PENDING, PageState.SEALED: SEALED, PageState.FETCHING: FETCHING}


class Keeping:
    """Over the pages of one tier; owns nothing."""

    def __init__(self, pages: Pages, disk: DiskLevel) -> None:
        self._pages, self._disk = pages, disk

    def probe(self, message: Probe) -> Probed:
        """State and level of each key. To ask refreshes and holds nothing."""
        states, levels = bytearray(), bytearray()
        for key in message.keys:
            page = self._pages.index.get(key)
            below = page is None and self._disk.has(key)
            states.append(SEALED if below else UNKNOWN if page is None else _PROBED[page.state])
            levels.append(DISK if below else MEMORY)
        return Probed(bytes(states), bytes(levels))

    def keep(self, message: Keep, now: float) -> Kept:
        """What is sealed in memory stays there, with what it continues; what is only on disk stays there, each until its time.

        Raises `keep_full` and changes nothing.
        """
        records, keeps = self._disk.index.records, self._disk.keeps
        pages = {key: page for key in message.keys if (page := self._pages.sealed_page(key)) is not None}
        below = [key for key in message.keys if key in records]
        held = keeps.plan([key for key in below if key not in pages], [key for key in below if key in pages], now)
        until = now + message.ttl_ms / 1e3
        self._pages.space.keep(pages.values(), until)
        keeps.hold(held, until)
        states = bytes(key in pages or key in held for key in message.keys)
        return Kept(states, self._pages.space.kept * GRANULE + keeps.bytes_held(now))

    def unkeep(self, message: Unkeep) -> None:
        found = map(self._pages.index.get, message.keys)
        self._pages.space.unkeep([page for page in found if page is not None])
        self._disk.keeps.let_go(message.keys)
