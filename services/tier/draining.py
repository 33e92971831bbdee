"""Draining, pure: an operator lets a tier rest, or asks it to hand its pages over to others; other tiers ask it to take theirs.

While it drains nothing new is granted, so nothing new has to be copied; lookups, fetches for them, loads and pins go on. What is
here stays here: the next life over the same pool adopts it. A node that leaves for good hands over (`handover.py`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.transfer import Take, Taken
from pegaflow.services.tier.commands import Command
from pegaflow.services.tier.fetches import Fetches, Owner
from pegaflow.services.tier.handover import Handover
from pegaflow.services.tier.leases import Leases
from pegaflow.services.tier.lookups import Lookups
from pegaflow.services.tier.saves import Saves


class Draining:
    """`leaving`: this life ends. `asked`: an operator's drain, until `end`."""

    def __init__(
        self,
        node: str,
        saves: Saves,
        lookups: Lookups,
        leases: Leases,
        fetches: Fetches,
        out: list[Command],
        counts: Counter[str],
        jobs: itertools.count[int],
        adopting: Callable[[], bool],
    ) -> None:
        """`adopting`: are there pages of an earlier life that are not known yet?"""
        self._saves, self._lookups, self._leases, self._fetches = saves, lookups, leases, fetches
        self.leaving = False
        disk = lookups.disk

        def growing() -> bool:
            return bool(saves.grants or saves.hashing or not disk.loaded or adopting())

        self.handover = Handover(node, saves.pages, disk, out, counts, jobs, growing)

    @property
    def asked(self) -> bool:
        return self._saves.closed

    @property
    def on(self) -> bool:
        """Nobody should begin to count on this tier; what is here is served."""
        return self.leaving or self.asked

    @property
    def quiet(self) -> bool:
        """Nobody writes, loads or reads here just now."""
        return not (self._saves.grants or self._saves.hashing or self._leases.open or self._lookups.open)

    def begin(self, hand_over: bool) -> None:
        """No new saves, until `end`. Raises `RemoteError` where nobody knows whom to hand over to."""
        if hand_over and not self._lookups.metaserver:
            raise RemoteError(ErrorCode.UNSUPPORTED, "pages are handed over to nodes that a metaserver names, and there is none")
        self._saves.closed = True
        if not hand_over:
            self.handover.stop()
        elif not self.handover.on or self.handover.done:
            self.handover.begin()

    def end(self) -> None:
        self._saves.closed = False
        self.handover.stop()

    def take(self, message: Take, now: float) -> Taken:
        """Begins to fetch what is not here, as far as free memory goes. Raises `RemoteError`."""
        if self.on:
            raise RemoteError(ErrorCode.DRAINING, "the tier is draining")
        index, has = self._saves.pages.index, self._lookups.disk.has
        fresh = [key for key in dict.fromkeys(message.keys) if key not in index and not has(key)]
        owner = Owner(message.node, message.epoch, message.requests)
        count = self._fetches.start(owner, fresh, tuple(message.lengths), now, for_good=True)
        return Taken(message.keys.index(fresh[count]) if count < len(fresh) else len(message.keys))

    def view(self) -> dict[str, Any]:
        """For the dump."""
        return {"asked": self.asked, "quiet": self.quiet, "hand_over": self.handover.view()}
