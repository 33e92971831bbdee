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
        """The sealed ones stay, with what they continue, until their time. Raises `keep_full` and changes nothing."""
        pages = [self._pages.sealed_page(key) for key in message.keys]
        self._pages.space.keep([page for page in pages if page is not None], now + message.ttl_ms / 1e3)
        states = bytes(page is not None for page in pages)
        return Kept(states, self._pages.space.kept * GRANULE)

    def unkeep(self, message: Unkeep) -> None:
        found = map(self._pages.index.get, message.keys)
        self._pages.space.unkeep([page for page in found if page is not None])
