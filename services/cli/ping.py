"""`pegaflow ping`: how long each service takes to answer."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from typing import Any

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Ping, Pong
from pegaflow.services.cli import cluster
from pegaflow.services.cli.cluster import Cluster, Peer
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing, Wrong

NAME = "ping"
HELP = "how long each service takes to answer"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    cluster.add_options(parser)
    parser.add_argument("-n", "--count", type=positive, default=3, metavar="N", help="how often (default: 3)")
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    """A whole number above 0. Raises ValueError."""
    if (count := int(text)) < 1:
        raise ValueError(text)
    return count


def run(args: argparse.Namespace) -> int:
    """0: every ping was answered. 1: one was not."""

    async def look(at: Cluster) -> Listing:
        return await rounds(at, args.count, 1)

    return cluster.listed(args, look)


async def rounds(at: Cluster, count: int, parallel: int) -> Listing:
    """`count` round trips to every service, `parallel` at once; services in turn, so that none waits for another."""
    peers = [*at.metaservers, *at.tiers]
    share_s = at.left_s / max(1, len(peers))
    rows, wrong = [], []
    for peer in peers:
        begun = time.perf_counter()
        times, lost = await _times(at, peer, count, parallel, share_s)
        rows.append(row(peer, times, lost, time.perf_counter() - begun))
        if lost is not None:
            wrong.append(Wrong(peer.service, peer.node, peer.endpoint, lost.code, lost.text))
    return Listing(COLUMNS, rows, wrong)


async def _times(at: Cluster, peer: Peer, count: int, parallel: int, budget_s: float) -> tuple[list[float], PegaflowError | None]:
    """Seconds of each round trip, and why there are no more of them. The first one, which connects, does not count."""
    times: list[float] = []
    until = time.perf_counter() + budget_s
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            await at.tell(peer, Ping(), Pong, max(0.001, until - begun))
            times.append(time.perf_counter() - begun)

    try:
        await at.tell(peer, Ping(), Pong, budget_s)
        await asyncio.gather(*(worker() for _ in range(parallel)))
    except PegaflowError as error:
        left = 0
        return times, error
    return times, None


def row(peer: Peer, times: Sequence[float], lost: PegaflowError | None, took_s: float = 0.0) -> dict[str, Any]:
    """`times` in seconds; none: nothing came back."""
    ordered = sorted(times)
    return {
        "service": peer.service,
        "node": peer.node,
        "state": lost.code if lost is not None else "answers",
        "count": len(ordered),
        "min_ms": _ms(ordered, 0.0),
        "p50_ms": _ms(ordered, 0.5),
        "p99_ms": _ms(ordered, 0.99),
        "max_ms": _ms(ordered, 1.0),
        "per_s": round(len(ordered) / took_s) if took_s else None,
        "endpoint": peer.endpoint,
    }


def quantile(ordered: Sequence[float], at: float) -> float | None:
    """The nearest of the values, which are sorted; None without any."""
    return ordered[min(len(ordered) - 1, round(at * (len(ordered) - 1)))] if ordered else None


def _ms(ordered: Sequence[float], at: float) -> float | None:
    found = quantile(ordered, at)
    return None if found is None else round(found * 1e3, 3)


def shown_ms(value: Any) -> str:
    """A time for people."""
    return f"{value:.2f}ms" if isinstance(value, int | float) else "-"


COLUMNS = (
    Column("SERVICE", "service"),
    Column("NODE", "node"),
    Column("STATE", "state", tone=lambda value: Tone.GOOD if value == "answers" else Tone.BAD),
    Column("COUNT", "count"),
    Column("MIN", "min_ms", shown_ms),
    Column("P50", "p50_ms", shown_ms),
    Column("P99", "p99_ms", shown_ms),
    Column("MAX", "max_ms", shown_ms),
    Column("ENDPOINT", "endpoint"),
)
