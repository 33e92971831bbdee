"""`pegaflow status`: who is there, how are they. Asks every metaserver, every tier that one of them knows, and routers.

Engines are not asked: what tiers and routers say of those that are not well stands below the table.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.operate import Document, Ping, Pong, Status
from pegaflow.services.cli.cluster import Cluster, Peer, add_options, document_of, listed
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.departed import last_life
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.silence import explained, lost
from pegaflow.services.cli.table import ago, size, span
from pegaflow.services.cli.target import add_routers
from pegaflow.services.cli.unwell import unwell

NAME = "status"
HELP = "who is there, who was killed or is stopped, which engines are unwell"
ASKING = 0.7
"""The share of the time for asking them; the rest is for looking why somebody does not answer."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    add_routers(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everyone answered, and no engine is unwell. 1: not so."""
    return listed(args, look)


async def look(cluster: Cluster) -> Listing:
    """Everyone that can be found from there, metaservers first."""
    budget_s = ASKING * cluster.left_s
    peers = [*cluster.metaservers, *cluster.tiers, *cluster.routers]
    found = await asyncio.gather(*(_row(cluster, peer, budget_s) for peer in peers))
    silent = [one for one in cluster.wrong if one.service in ("metaserver", "tier", "router")]
    silent += [one for one in found if isinstance(one, Wrong)]
    answered = [one for one in found if not isinstance(one, Wrong)]
    documents = [row["status"] for row in answered]
    silent += lost(documents, {peer.node for peer in cluster.tiers})
    wrong = await explained(silent)
    for row in answered:
        row["last_life"] = last_life(documents, row["node"], row["epoch"]) if row["service"] == "tier" else None
    cluster.wrong[:] = [one for one in cluster.wrong if one not in silent]  # they are in `wrong`, with more to say
    rows = sorted([*map(_absent, wrong), *answered], key=lambda row: (str(row["service"]), str(row["node"])))
    wrong += [one for row in answered for one in unwell(row["service"], row["node"], row["status"])]
    return Listing(COLUMNS, rows, wrong)


async def _row(cluster: Cluster, peer: Peer, budget_s: float) -> dict[str, Any] | Wrong:
    try:
        questions = cluster.tell(peer, Ping(), Pong, budget_s), cluster.tell(peer, Status(), Document, budget_s)
        pong, answer = await asyncio.gather(*questions)
        return present(peer.endpoint, pong, document_of(answer))
    except PegaflowError as error:
        return Wrong(peer.service, peer.node, peer.endpoint, error.code, error.text)


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
        "last_life": None,
        "pages": keys if isinstance(keys, dict) else document.get("pages"),
        "free_bytes": document.get("free_bytes"),
        "pool_bytes": document.get("pool_bytes"),
        "sessions": _number(document.get("sessions")),
        "status": document,
    }


def _absent(silent: Wrong) -> dict[str, Any]:
    return silent._asdict() | {"reachable": False, "state": silent.code}


def _life(life: Any) -> str:
    """`died 12.0s ago`: without a goodbye, and the one that is here now is another."""
    words = {"dead": "died", "replaced": "died", "bye": "left", "silence": "was silent"}
    return f"{words.get(life['reason'], life['reason'])} {ago(life['ago_ms'])}" if life else "-"


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
    Column("LAST LIFE", "last_life", _life),
    Column("PAGES", "pages", _pages),
    Column("FREE", "free_bytes", size),
    Column("POOL", "pool_bytes", size),
    Column("SESSIONS", "sessions"),
    Column("VERSION", "package"),
    Column("EPOCH", "epoch", wide=True),
    Column("ENDPOINT", "endpoint"),
    Column("", "status"),
)
