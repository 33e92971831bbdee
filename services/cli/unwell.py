"""Engines that are not well, out of the status documents of tiers and routers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pegaflow.services.cli.listing import Wrong
from pegaflow.services.cli.table import span


def unwell(service: str, node: str, document: Mapping[str, Any]) -> list[Wrong]:
    """What this service says of its engines; the document may have any form."""
    told = {"tier": ("sessions", _attached), "router": ("engines", _asked)}.get(service)
    rows = document.get(told[0]) if told is not None else None
    if told is None or not isinstance(rows, list):
        return []
    return [one for row in rows if isinstance(row, Mapping) for one in told[1](node, row)]


def state(session: Mapping[str, Any]) -> str:
    """`silent`: at least one of its processes shows no life; `incomplete`: not all of them are there."""
    return "silent" if session.get("stale") else "attached" if session.get("complete", True) else "incomplete"


def members(session: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = session.get("members")
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def process(member: Mapping[str, Any]) -> str:
    return f"{member.get('role')} {member.get('rank')}: {member.get('pid')}"


def _attached(node: str, session: Mapping[str, Any]) -> Iterator[Wrong]:
    engine, how = str(session.get("engine")), state(session)
    if how == "silent":
        times = {process(one): one["silent_ms"] for one in members(session) if isinstance(one.get("silent_ms"), int)}
        last = max(times.values(), default=0)
        still = ", ".join(name for name, time in times.items() if 2 * time >= last)
        text = f"attached to {node}: silent for {span(last)}: its process is stopped, hangs or gets no CPU ({still or 'unknown'})"
        yield Wrong("engine", engine, "", "silent", text)
    elif how == "incomplete":
        there = ", ".join(map(process, members(session)))
        yield Wrong("engine", engine, "", "not_ready", f"attached to {node}: incomplete: it has only {there or 'none'}")


def _asked(node: str, engine: Mapping[str, Any]) -> Iterator[Wrong]:
    if engine.get("healthy") is False:
        role, url = str(engine.get("role")), str(engine.get("url"))
        yield Wrong("engine", role, url, "unhealthy", f"router {node} says: {engine.get('why') or 'its health check fails'}")
