"""`pegaflow nodes`: every tier: how it is by its own word, and how metaservers see it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli.cluster import Cluster, Peer, add_options, document_of, listed
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.silence import gone
from pegaflow.services.cli.table import size

NAME = "nodes"
HELP = "every tier, by its own word and the metaservers'"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: every tier answered, and no metaserver doubts or misses one. 1: otherwise."""
    return listed(args, look)


async def look(cluster: Cluster) -> Listing:
    found = list(await asyncio.gather(*(_row(cluster, peer) for peer in cluster.tiers)))
    doubted = [
        Wrong("tier", peer.node, peer.endpoint, peer.state, "a metaserver does not hear from it")
        for peer in cluster.tiers
        if peer.state == "suspect"
    ]
    missed = await gone(cluster)
    found += [_named(Peer(one.service, one.node, one.endpoint)) | {"state": one.code} for one in missed]
    return Listing(COLUMNS, sorted(found, key=lambda row: str(row["node"])), [*doubted, *missed])


async def _row(cluster: Cluster, peer: Peer) -> dict[str, Any]:
    try:
        answer = await cluster.tell(peer, Status(), Document)
        return row(peer, document_of(answer))
    except PegaflowError as error:
        cluster.wrong.append(Wrong("tier", peer.node, peer.endpoint, error.code, error.text))
        return _named(peer) | {"state": error.code}


def row(peer: Peer, told: Mapping[str, Any]) -> dict[str, Any]:
    """`told` is the tier's status document, any field of it may be missing."""
    drain, pages = told.get("drain"), told.get("pages")
    sessions = told.get("sessions")
    return _named(peer) | {
        "state": str(told.get("state", "?")),
        "draining": isinstance(drain, Mapping) and bool(drain.get("asked")),
        "sealed": pages.get("sealed", 0) if isinstance(pages, Mapping) else None,
        "free_bytes": told.get("free_bytes"),
        "pool_bytes": told.get("pool_bytes"),
        "sessions": len(sessions) if isinstance(sessions, list) else None,
        "package": told.get("package"),
        "control": told.get("control") or peer.control or None,
    }


def _named(peer: Peer) -> dict[str, Any]:
    epoch = f"{peer.epoch:016x}" if peer.epoch else None
    seen = {"node": peer.node, "catalogue": peer.state or None, "endpoint": peer.endpoint, "epoch": epoch}
    return seen | {"control": peer.control or None}


def _well(state: Any) -> Tone:
    return {"ready": Tone.GOOD, "up": Tone.GOOD, "draining": Tone.DOUBT, "starting": Tone.DOUBT, "syncing": Tone.DOUBT}.get(
        str(state), Tone.BAD if state else Tone.PLAIN
    )


COLUMNS = (
    Column("NODE", "node"),
    Column("STATE", "state", tone=_well),
    Column("CATALOGUE", "catalogue", tone=_well),
    Column("DRAINING", "draining", tone=lambda value: Tone.DOUBT if value else Tone.PLAIN),
    Column("SEALED", "sealed"),
    Column("FREE", "free_bytes", size),
    Column("POOL", "pool_bytes", size),
    Column("SESSIONS", "sessions"),
    Column("VERSION", "package", wide=True),
    Column("EPOCH", "epoch", wide=True),
    Column("ENDPOINT", "endpoint"),
    Column("CONTROL", "control", wide=True),
)
