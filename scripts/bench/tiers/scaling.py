"""What a tier does with several clients at once: pages sealed, pages evicted to make room, pages fetched from another node.

seal    each client puts its share into a pool with room (tier a)
evict   the same into a full pool, so that every page put is a page evicted (tier e)
fetch   as many clients at tier b, which is full too, get what was sealed at a: each page comes over the mover, is verified,
        sealed and copied out
copy    each client copies its share within its own memory: what the cores and the memory allow that many processes
"""

from __future__ import annotations

import itertools

from children import Children
from stack import Stack

from tiers.clients import Clients, attached
from tiers.figures import Rounds, Span
from tiers.pools import pool_bytes
from tiers.rows import COPY, EVICT, FETCH, SEAL

FULL = 3
"""Rounds in the pools that are full."""
WARM = FULL + 1


def scaling(page_bytes: int, clients: int, rounds: int, total: int, seeds: itertools.count[int]) -> Rounds:
    """`total` bytes a round, shared by so many clients. Rounds count once the pools of b and e are full."""
    pages = max(1, total // page_bytes // clients)
    full = ("--pool-size", str(FULL * total))
    found = Rounds(page_bytes)
    with (
        Stack("abe", pool_bytes((WARM + rounds) * total), mover=True, more={"b": full, "e": (*full, "--no-mover")}) as stack,
        Children() as children,
    ):
        sealing, fetching, evicting = (attached(children, stack, node, pages, page_bytes, clients) for node in "abe")
        for number in range(-WARM, rounds):
            batches = [next(seeds) for _ in range(clients)]
            for group in (sealing, fetching, evicting):
                group.prepare(batches)
            spans = {
                COPY: sealing.copy(),
                SEAL: sealing.put(),
                EVICT: _counted(stack, evicting),
                FETCH: fetching.get(),
            }
            if number >= 0:
                for way, span in spans.items():
                    found.add(way, span)
    return found


def _evicted(stack: Stack) -> int:
    return int(stack.dump("e")["counts"].get("evicted", 0))


def _counted(stack: Stack, clients: Clients) -> Span:
    """A put whose pages are those that the tier says it evicted."""
    before = _evicted(stack)
    return clients.put()._replace(pages=_evicted(stack) - before)
