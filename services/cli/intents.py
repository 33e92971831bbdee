"""`pegaflow intents`: open grants, slots that somebody may still write. None may be taken away while its holder lives."""

from __future__ import annotations

import argparse
from typing import Any

from pegaflow.common.wire.messages import inspection
from pegaflow.services.cli.cluster import Cluster, add_options, listed, rows_of_each
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing
from pegaflow.services.cli.table import ago, size, span

NAME = "intents"
HELP = "open grants: age, holder, pages that are not written yet"
STALE_MS = 1500
"""An engine that is silent for longer is not believed (docs/protocol.md 2.4)."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everyone answered. 1: someone did not."""
    return listed(args, look)


async def look(cluster: Cluster) -> Listing:
    rows, notes = await rows_of_each(cluster, inspection.Grants(), inspection.GrantList, rows_of, "open grants")
    return Listing(COLUMNS, rows, (), notes)


def rows_of(node: str, answer: inspection.GrantList) -> list[dict[str, Any]]:
    """One row per grant."""
    return [
        {
            "node": node,
            "grant": answer.grants[i],
            "intent": answer.intents[i],
            "engine": answer.engines[i],
            "requests": answer.requests[i],
            "holders": answer.holders[i],
            "pages": answer.pages[i],
            "size_bytes": answer.bytes[i],
            "age_ms": answer.ages_ms[i],
            "silent_ms": answer.silent_ms[i],
        }
        for i in range(len(answer.grants))
    ]


def _silent(value: Any) -> Tone:
    return Tone.BAD if value is not None and value > STALE_MS else Tone.GOOD


COLUMNS = (
    Column("NODE", "node"),
    Column("GRANT", "grant"),
    Column("INTENT", "intent"),
    Column("ENGINE", "engine"),
    Column("REQUESTS", "requests"),
    Column("MAY WRITE", "holders"),
    Column("PAGES", "pages"),
    Column("SIZE", "size_bytes", size),
    Column("GRANTED", "age_ms", ago),
    Column("SILENT", "silent_ms", span, tone=_silent),
)
