"""`pegaflow status`: who is there, how are they. Asks every metaserver, and every tier that one of them knows."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Document, Ping, Pong, Status
from pegaflow.services.cli.cluster import Cluster, Peer, add_options, document_of, listed
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.departed import missing
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.table import ago, size, span

NAME = "status"
HELP = "who is there and how they are"
FORGOTTEN_MS = 24 * 3_600_000
"""A node that was silent for so long is not missed any more."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everyone answered. 1: someone did not."""
    return listed(args, look)


async def look(cluster: Cluster) -> Listing:
    """Everyone that can be found from there, metaservers first."""
    silent = [one for one in cluster.wrong if one.service in ("metaserver", "tier")]
    peers = [*cluster.metaservers, *cluster.tiers]
    found = await asyncio.gather(*(_row(cluster, peer) for peer in peers))
    gone = _gone(found, {peer.node for peer in cluster.tiers})
    unseen = [_absent(Peer(one.service, one.node, one.endpoint), one.code, one.text) for one in silent]
    rows = sorted([*unseen, *found, *gone], key=lambda row: str(row["service"]))
    wrong = [
        Wrong(row["service"], row["node"], row["endpoint"], row["code"], row["text"])
        for row in [*found, *gone]
        if not row["reachable"]
    ]
    return Listing(COLUMNS, rows, wrong)


async def _row(cluster: Cluster, peer: Peer) -> dict[str, Any]:
    try:
        pong, answer = await asyncio.gather(cluster.tell(peer, Ping(), Pong), cluster.tell(peer, Status(), Document))
        return present(peer.endpoint, pong, document_of(answer))
    except PegaflowError as error:
        return _absent(peer, error.code, error.text)


def present(endpoint: str, pong: Pong, document: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a service that answered; `document` is its own word, any field of it may be missing."""
    keys = document.get("keys")
    return {
        "service": pong.service,
        "node": pong.node,
        "endpoint": endpoint,
        "reachable": True,
        "state": str(document.get("state", "?")),
        "code": "",
        "text": "",
        "epoch": f"{pong.epoch:016x}",
        "package": pong.package,
        "uptime_ms": pong.uptime_ms,
        "pages": keys if isinstance(keys, dict) else document.get("pages"),
        "free_bytes": document.get("free_bytes"),
        "pool_bytes": document.get("pool_bytes"),
        "sessions": _number(document.get("sessions")),
        "status": document,
    }


def _gone(found: list[dict[str, Any]], here: set[str]) -> list[dict[str, Any]]:
    """Nodes that a metaserver has lost sight of: a tier that died an hour ago is in nobody's list any more."""
    lost = {one.node: one for row in found for one in missing(row.get("status") or {}, here, FORGOTTEN_MS)}
    return [
        _absent(
            Peer("tier", one.node, ""), one.reason, f"fell silent {ago(one.ago_ms)}, {one.sealed or 'no'} pages were known there"
        )
        for one in lost.values()
    ]


def _absent(peer: Peer, code: str, text: str) -> dict[str, Any]:
    named = {"service": peer.service, "node": peer.node, "endpoint": peer.endpoint}
    return named | {"reachable": False, "state": code, "code": code, "text": text}


def _pages(pages: Any) -> str:
    """`12 sealed, 3 pending` from an object of counts."""
    if isinstance(pages, dict):
        return ", ".join(f"{count} {state}" for state, count in pages.items() if count) or "0"
    number = _number(pages)
    return "-" if number is None else str(number)


def _number(value: Any) -> int | None:
    """A count, or how many there are."""
    if isinstance(value, list | dict):
        return len(value)
    return value if isinstance(value, int) else None


def _well(state: Any) -> Tone:
    return {"ready": Tone.GOOD, "draining": Tone.DOUBT, "starting": Tone.DOUBT}.get(str(state), Tone.BAD)


COLUMNS = (
    Column("SERVICE", "service"),
    Column("NODE", "node"),
    Column("STATE", "state", tone=_well),
    Column("", "reachable"),
    Column("", "code"),
    Column("", "text"),
    Column("UPTIME", "uptime_ms", span),
    Column("PAGES", "pages", _pages),
    Column("FREE", "free_bytes", size),
    Column("POOL", "pool_bytes", size),
    Column("SESSIONS", "sessions"),
    Column("VERSION", "package"),
    Column("EPOCH", "epoch", wide=True),
    Column("ENDPOINT", "endpoint"),
    Column("", "status"),
)
