"""`pegaflow bench`: round trips of the bus, many of them, some at once, to each service in turn."""

from __future__ import annotations

import argparse
from typing import Any

from pegaflow.services.cli import cluster, ping
from pegaflow.services.cli.cluster import Cluster
from pegaflow.services.cli.column import Column
from pegaflow.services.cli.listing import Listing

NAME = "bench"
HELP = "round trips of the bus: p50, p99, rate"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    cluster.add_options(parser)
    parser.add_argument("-n", "--count", type=ping.positive, default=1000, metavar="N", help="per service (default: 1000)")
    parser.add_argument("--parallel", type=ping.positive, default=8, metavar="N", help="of them at once (default: 8)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: every round trip ended within --timeout, which all services share. 1: otherwise."""

    async def look(at: Cluster) -> Listing:
        found = await ping.rounds(at, args.count, args.parallel)
        return Listing(COLUMNS, found.rows, found.wrong)

    return cluster.listed(args, look)


COLUMNS = (*ping.COLUMNS[:-1], Column("RATE", "per_s"), ping.COLUMNS[-1])
