"""`pegaflow doctor`: what is wrong with this deployment, and what to do about each thing.

Compares engines (hash seed, algorithm, fingerprint factor by factor), versions and clocks; looks at limits, memory, folders, keys
and network transports of every service; lets every service connect to every endpoint that another advertises.
"""

from __future__ import annotations

import argparse
from typing import Any

from pegaflow.services.cli import cluster
from pegaflow.services.cli.cluster import Cluster
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.doctor.collect import collect
from pegaflow.services.cli.doctor.diagnosis import diagnose
from pegaflow.services.cli.doctor.finding import Finding, Severity
from pegaflow.services.cli.listing import Listing
from pegaflow.services.cli.target import add_routers

NAME = "doctor"
DISK = "20s"
"""A slow disk needs longer for 64 MiB than a look takes otherwise."""
HELP = "what is wrong, and what to do: hash seeds, versions, limits, reachability, who is silent"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cluster.add_options(parser)
    add_routers(parser)
    parser.add_argument(
        "--disk", action="store_true", help=f"measure the tiers' disks; the look may then take {DISK}, if --timeout does not say"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: nothing found. 1: findings, or somebody did not answer."""
    count = 0
    if args.disk and not args.timeout:
        args.timeout = DISK

    async def look(at: Cluster) -> Listing:
        nonlocal count
        collected = await collect(at, args.disk)
        found = diagnose(collected.patients, collected.absent, collected.lost)
        count = len(found)
        notes = [*collected.notes, f"{len(collected.patients)} services looked at, {count} findings"]
        return Listing(COLUMNS, [row(one) for one in found], notes=notes)

    code = cluster.listed(args, look)
    return 1 if count else code


def row(finding: Finding) -> dict[str, str]:
    return {**finding._asdict(), "severity": str(finding.severity)}


def _tone(severity: Any) -> Tone:
    return Tone.BAD if severity == Severity.ERROR else Tone.DOUBT


COLUMNS = (
    Column("SEVERITY", "severity", tone=_tone),
    Column("FINDING", "code"),
    Column("WHERE", "where"),
    Column("WHAT", "what"),
    Column("WHAT TO DO", "todo"),
)
