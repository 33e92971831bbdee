"""Put and get of pages of one size between processes, beside Mooncake Store, in turns.

            put            get local                                   Mooncake
    client ─────▶ tier a ─────▶ client                    client ─TCP─▶ provider ─TCP─▶ client
                    └─ READ ─▶ tier b ─────▶ client
                               get over the mover

Tiers c and d are a and b once more with UCX_TLS=tcp. The client that gets is never the one that put. A put finds room; what is
fetched replaces what was fetched before, in memory that the mover has touched before, as in a node that has run for a while.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from children import Children
from report import Goal, at_least
from stack import Stack

from tiers.clients import Clients, attached
from tiers.figures import Rounds, Span
from tiers.mooncakes import Mooncakes
from tiers.pools import pool_bytes
from tiers.rows import COPY, LOCAL, MOVER, MOVER_TCP, PUT, THEIR_GET, THEIR_PUT

GOAL = 2.0
TCP = ("--ucx-tls", "tcp")
COMPARED = (
    (PUT, THEIR_PUT, "shared memory over TCP"),
    (LOCAL, THEIR_GET, "shared memory over TCP"),
    (MOVER, THEIR_GET, "cma over TCP"),
    (MOVER_TCP, THEIR_GET, "TCP over TCP"),
)
"""Of ours, of Mooncake's, and the transports of both. cma is what UCX chooses between processes of one machine."""
FETCHED = 4
"""Batches in the pools that are fetched into."""
WARM = FETCHED + 1

Turn = Callable[[int], Iterator[tuple[str, Span]]]
"""One round of one side for a batch; names what it measured."""


def transfers(page_bytes: int, rounds: int, total: int, mooncakes: Mooncakes | None, seeds: itertools.count[int]) -> Rounds:
    """`total` bytes in one call. Rounds count once the pools of b and d are full."""
    pages = max(1, total // page_bytes)
    found = Rounds(page_bytes)
    small = ("--pool-size", str(FETCHED * total))
    more = {"b": small, "c": TCP, "d": TCP + small}
    pool = pool_bytes((WARM + rounds) * total)
    with Stack("abcd", pool, mover=True, more=more) as stack, Children() as children:
        writer, near, far, tcp_writer, tcp_far = (attached(children, stack, node, pages, page_bytes) for node in "aabcd")
        turns = [_ours(writer, near, far), _over_tcp(tcp_writer, tcp_far)]
        if mooncakes is not None:
            turns.append(_theirs(mooncakes.clients(children, pages, page_bytes), mooncakes.clients(children, pages, page_bytes)))
        for number in range(-WARM, rounds):
            for turn in turns[number % len(turns) :] + turns[: number % len(turns)]:
                for way, span in turn(next(seeds)):
                    if number >= 0:
                        found.add(way, span)
    return found


def _ours(writer: Clients, near: Clients, far: Clients) -> Turn:
    def turn(seed: int) -> Iterator[tuple[str, Span]]:
        for clients in (writer, near, far):
            clients.prepare([seed])
        yield COPY, writer.copy()
        yield PUT, writer.put()
        yield LOCAL, near.get()
        yield MOVER, far.get()

    return turn


def _over_tcp(writer: Clients, far: Clients) -> Turn:
    def turn(seed: int) -> Iterator[tuple[str, Span]]:
        for clients in (writer, far):
            clients.prepare([seed])
        writer.put()
        yield MOVER_TCP, far.get()

    return turn


def _theirs(writer: Clients, reader: Clients) -> Turn:
    def turn(seed: int) -> Iterator[tuple[str, Span]]:
        for clients in (writer, reader):
            clients.prepare([seed])
        yield THEIR_PUT, writer.put()
        yield THEIR_GET, reader.get()
        writer.forget()

    return turn


def transfer_goals(page_bytes: int, found: Rounds) -> list[Goal]:
    """The last one is of the same transport on both sides; the others are of what each has on one machine."""
    if THEIR_PUT not in found:
        return []
    size = f"{page_bytes >> 10} KiB"
    return [at_least(f"{size}, {way} / {other}: {by}", found.ratio(way, other), GOAL) for way, other, by in COMPARED]
