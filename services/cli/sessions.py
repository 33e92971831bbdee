"""`pegaflow sessions`: which engines are attached, with which processes, fingerprints and factors, and what they hold."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli.cluster import Cluster, add_options, document_of, listed
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing
from pegaflow.services.cli.namespaces import SHORT, Namespace, differing, namespaces
from pegaflow.services.cli.table import size, span
from pegaflow.services.cli.unwell import members, process, state, unwell

NAME = "sessions"
HELP = "engines that are attached: processes, who is silent, whose settings differ, what fills the pools"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everyone answered, every engine is whole and shows life. 1: not so."""
    return listed(args, look)


async def look(cluster: Cluster) -> Listing:
    answers, known = await asyncio.gather(cluster.ask_each(cluster.tiers, Status(), Document), namespaces(cluster))
    return present([(peer.node, _sessions(document_of(answer))) for peer, answer in answers], known)


def present(sessions: list[tuple[str, list[Mapping[str, Any]]]], known: Mapping[bytes, Namespace]) -> Listing:
    """One row per session; engines of different fingerprints are compared in notes, and pages without engines named."""
    rows = [_row(node, one, known) for node, mine in sessions for one in mine]
    wrong = [one for node, mine in sessions for one in unwell("tier", node, {"sessions": mine})]
    attached = [one for name, one in known.items() if any(row["fingerprint"] == name.hex() for row in rows)]
    notes = [] if rows else ["no engine is attached"]
    for other in attached[1:]:
        factors = differing(attached[0].factors, other.factors) or "factors unknown"
        notes.append(f"fingerprints {attached[0].label} and {other.label} differ: {factors}")
    notes += [
        f"fingerprint {one.label} still holds {one.pages} pages, {size(one.used_bytes)}: model {one.factors.get('model', '?')}"
        for one in known.values()
        if one.pages and not one.engines
    ]
    return Listing(COLUMNS, rows, wrong, notes)


def _row(node: str, one: Mapping[str, Any], known: Mapping[bytes, Namespace]) -> dict[str, Any]:
    mine = members(one)
    fingerprint = str(one.get("fingerprint", ""))
    namespace = known.get(bytes.fromhex(fingerprint)) if len(fingerprint) == 32 else None
    silent = [member["silent_ms"] for member in mine if isinstance(member.get("silent_ms"), int)]
    return {
        "node": node,
        "engine": one.get("engine"),
        "session": one.get("session"),
        "state": state(one),
        "fingerprint": fingerprint,
        "members": mine,
        "silent_ms": max(silent, default=None),
        "grants": sum(member.get("grants", 0) for member in mine),
        "leases": one.get("leases"),
        "lookups": one.get("lookups"),
        "namespace_pages": namespace.pages if namespace else None,
        "namespace_bytes": namespace.used_bytes if namespace else None,
        "factors": dict(namespace.factors) if namespace else None,
    }


def _sessions(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """As far as the document has the form that is expected."""
    sessions = document.get("sessions", [])
    return [one for one in sessions if isinstance(one, dict)] if isinstance(sessions, list) else []


def _processes(members: list[Mapping[str, Any]]) -> str:
    return ", ".join(map(process, members)) or "-"


def _well(state: Any) -> Tone:
    return Tone.GOOD if state == "attached" else Tone.BAD


COLUMNS = (
    Column("NODE", "node"),
    Column("ENGINE", "engine"),
    Column("SESSION", "session", wide=True),
    Column("STATE", "state", tone=_well),
    Column("FINGERPRINT", "fingerprint", lambda name: str(name)[:SHORT] or "-"),
    Column("PROCESSES", "members", _processes),
    Column("SILENT", "silent_ms", span),
    Column("GRANTS", "grants"),
    Column("LEASES", "leases"),
    Column("LOOKUPS", "lookups"),
    Column("PAGES", "namespace_pages"),
    Column("USED", "namespace_bytes", size),
    Column("", "factors"),
)
