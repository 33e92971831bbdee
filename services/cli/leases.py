"""`pegaflow leases`: who holds pages still, engines that load and other tiers that read."""

from __future__ import annotations

import argparse
from typing import Any

from pegaflow.common.wire.messages import inspection
from pegaflow.services.cli.cluster import Cluster, add_options, listed, rows_of_each
from pegaflow.services.cli.column import Column
from pegaflow.services.cli.listing import Listing
from pegaflow.services.cli.sight import time
from pegaflow.services.cli.table import ago, size, span

NAME = "leases"
HELP = "who holds pages still, and for how long"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everyone answered. 1: someone did not."""
    return listed(args, look)


async def look(cluster: Cluster) -> Listing:
    rows, notes = await rows_of_each(cluster, inspection.Leases(), inspection.LeaseList, rows_of, "leases")
    return Listing(COLUMNS, rows, (), notes)


def rows_of(node: str, answer: inspection.LeaseList) -> list[dict[str, Any]]:
    """One row per lease."""
    return [
        {
            "node": node,
            "lease": answer.leases[i],
            "kind": "pin" if not answer.engines[i] else "loading" if time(answer.left_ms[i]) is None else "lease",
            "holder": answer.engines[i] or f"tier {answer.readers[i]}",
            "request": answer.requests[i],
            "pages": answer.pages[i],
            "size_bytes": answer.bytes[i],
            "age_ms": answer.ages_ms[i],
            "left_ms": time(answer.left_ms[i]),
        }
        for i in range(len(answer.leases))
    ]


COLUMNS = (
    Column("NODE", "node"),
    Column("LEASE", "lease"),
    Column("KIND", "kind"),
    Column("HOLDER", "holder"),
    Column("REQUEST", "request"),
    Column("PAGES", "pages"),
    Column("SIZE", "size_bytes", size),
    Column("SINCE", "age_ms", ago),
    Column("ENDS IN", "left_ms", lambda left: span(left) if left is not None else "release"),
)
