"""From the real save tracker's offers to intents: which pages a step completes, and their keys (connector/saving.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker

from simulation.connector import Connector, OpenIntent
from simulation.request import Request


class Savings:
    """Of one engine. Block ids do not matter here: a request's blocks are numbered from 0."""

    def __init__(self, connector: Connector, block: int, tails: bool) -> None:
        self._connector, self._block = connector, block
        self.tracker = SaveTracker(block, connector.ranks, tails)

    def step(self, parts: Sequence[tuple[Request, int, int, int]]) -> OpenIntent | None:
        """Requests with computed, scheduled and known tokens; the intent that goes out before the forward pass."""
        offers: list[tuple[Request, Offer]] = []
        for request, computed, scheduled, known in parts:
            progress = Progress(request.name, computed, scheduled, known, known // self._block)
            if self.tracker.wants(progress):
                offer = self.tracker.progressed(progress, range(-(-known // self._block)))
                if offer is not None:
                    offers.append((request, offer))
        saves = self.tracker.published([offer for _, offer in offers])
        keys: list[bytes] = []
        stripes: list[int] = []
        owners: list[int] = []
        tails = 0
        for owner, (request, offer) in enumerate(offers):
            full = len(offer.indices) - (offer.tail_rows > 0)
            every = request.session.keys(offer.indices[full - 1] + 1 if full else 0)
            keys += [every[index] for index in offer.indices[:full]]
            if offer.tail_rows:
                keys.append(request.session.tail(offer.indices[-1] * self._block + offer.tail_rows))
                tails += 1
            stripes += [index % self._connector.ranks for index in offer.indices]
            owners += [owner] * len(offer.indices)
        if not keys:
            return None
        ended = partial(self._ended, [save.save for save in saves])
        return self._connector.intent(keys, stripes, [request.name for request, _ in offers], owners, tails, ended)

    def _ended(self, saves: list[int]) -> None:
        for save in saves:
            self.tracker.ended(save, self._connector.ranks)
