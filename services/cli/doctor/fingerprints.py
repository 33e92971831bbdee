"""`pegaflow fingerprints`: by which factors each attached engine names its pages, side by side. Equal factors: shared pages."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import Any

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.facts import Facts
from pegaflow.common.wire.messages.operate import Document
from pegaflow.services.cli import cluster
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.doctor.naming import short
from pegaflow.services.cli.doctor.patient import Engine, Patient, engines
from pegaflow.services.cli.listing import Listing

NAME = "fingerprints"
HELP = "how engines name pages, factor by factor"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    cluster.add_options(parser)
    parser.add_argument("--differing", action="store_true", help="only factors that are not the same everywhere")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everybody answered. 1: somebody did not."""

    async def look(at: Cluster) -> Listing:
        found = await asyncio.gather(*(_patient(at, peer) for peer in at.tiers))
        listed = rows(engines([one for one in found if one is not None]))
        return Listing(COLUMNS, [one for one in listed if one["differs"] or not args.differing])

    return cluster.listed(args, look)


async def _patient(at: Cluster, peer: Peer) -> Patient | None:
    answer = await at.ask(peer, Facts(), Document)
    try:
        return Patient(answer.service, answer.node, document_of(answer)) if answer is not None else None
    except PegaflowError:
        return None


def rows(found: Sequence[Engine]) -> list[dict[str, Any]]:
    """One per factor and engine, factors in the order of their names behind the fingerprint itself."""
    names = sorted({name for engine in found for name in engine.factors})
    listed = []
    for name in ("fingerprint", *names):
        values = [engine.fingerprint if name == "fingerprint" else engine.factors.get(name) for engine in found]
        for engine, value in zip(found, values, strict=True):
            row = {"factor": name, "engine": engine.name, "node": engine.node, "value": value}
            listed.append(row | {"differs": len(set(values)) > 1})
    return listed


COLUMNS = (
    Column("FACTOR", "factor"),
    Column("ENGINE", "engine"),
    Column("NODE", "node"),
    Column("DIFFERS", "differs", tone=lambda value: Tone.DOUBT if value else Tone.PLAIN),
    Column("VALUE", "value", short),
)
