"""`pegaflow status`: who is there, how are they. Asks every metaserver, and every tier that one of them knows."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.operate import Document, Ping, Pong, Status
from pegaflow.services.cli import target
from pegaflow.services.cli.table import size, span, table

HEAD = ("SERVICE", "NODE", "STATE", "UPTIME", "PAGES", "FREE", "SESSIONS", "VERSION", "ENDPOINT")


@dataclass(slots=True)
class Seen:
    """One process as far as it answered. `code` empty: it did. `document` is its own word; any field may be missing."""

    endpoint: str
    service: str = "?"
    node: str = "?"
    epoch: str = ""
    package: str = "?"
    uptime_ms: int = 0
    code: str = ""
    text: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    nodes: NodeList | None = None

    def as_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"endpoint": self.endpoint, "service": self.service, "node": self.node, "reachable": not self.code}
        if self.code:
            return out | {"code": self.code, "text": self.text}
        return out | {"epoch": self.epoch, "package": self.package, "uptime_ms": self.uptime_ms, "status": self.document}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("status", help="who is there and how they are", description=__doc__)
    target.add_options(parser)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="for people (default) or for programs")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everyone answered. 1: someone did not."""
    seen = asyncio.run(look(target.choose(args)))
    if args.output == "json":
        print(json.dumps([one.as_json() for one in seen], indent=2))
    else:
        print(table(HEAD, [_row(one) for one in seen]), end="")
        for one in seen:
            if one.code:
                print(f"{one.service} {one.node} at {one.endpoint}: {one.code}: {one.text}", file=sys.stderr)
    return 1 if any(one.code for one in seen) else 0


async def look(at: target.Target) -> list[Seen]:
    """Everyone that can be found from there, metaservers first; all are asked at once."""
    factory = SocketFactory()
    loop = asyncio.get_running_loop()
    try:
        seen = list(await asyncio.gather(*(_ask(factory, loop, url, "metaserver", at.timeout_s) for url in at.metaservers)))
        tiers = dict.fromkeys(at.tiers, "?")
        for one in seen:
            if one.nodes is not None:
                tiers.update(zip(one.nodes.requests, one.nodes.nodes, strict=True))
        found = await asyncio.gather(*(_ask(factory, loop, url, "tier", at.timeout_s, node) for url, node in tiers.items()))
        return seen + list(found)
    finally:
        factory.close()


async def _ask(
    factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoint: str, service: str, timeout_s: float, node: str = "?"
) -> Seen:
    seen = Seen(endpoint, service, node)
    try:
        client = RpcClient(factory, loop, endpoint)
    except PegaflowError as error:
        seen.code, seen.text = error.code, error.text
        return seen
    try:
        pong = await client.request(Ping(), timeout_s)
        if not isinstance(pong, Pong):
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"answered a ping with {type(pong).__name__}")
        seen.service, seen.node, seen.epoch = pong.service, pong.node, f"{pong.epoch:016x}"
        seen.package, seen.uptime_ms = pong.package, pong.uptime_ms
        seen.document = _document(await client.request(Status(), timeout_s))
        if pong.service == "metaserver":
            nodes = await client.request(Nodes(), timeout_s)
            seen.nodes = nodes if isinstance(nodes, NodeList) else None
    except PegaflowError as error:
        seen.code, seen.text = error.code, error.text
    finally:
        client.close()
    return seen


def _document(answer: Any) -> Mapping[str, Any]:
    try:
        document = json.loads(answer.json) if isinstance(answer, Document) else None
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise RemoteError(ErrorCode.BAD_MESSAGE, "the status is no JSON object")
    return document


def _row(one: Seen) -> tuple[str, ...]:
    if one.code:
        return (one.service, one.node, one.code, "-", "-", "-", "-", "-", one.endpoint)
    document = one.document
    keys = document.get("keys")
    pages = keys if isinstance(keys, dict) else document.get("pages")
    free = f"{size(document.get('free_bytes'))}/{size(document.get('pool_bytes'))}" if "pool_bytes" in document else "-"
    return (
        one.service,
        one.node,
        str(document.get("state", "?")),
        span(one.uptime_ms),
        _pages(pages),
        free,
        _count(document.get("sessions")),
        one.package,
        one.endpoint,
    )


def _pages(pages: Any) -> str:
    """`12 sealed, 3 pending` from an object of counts."""
    if isinstance(pages, dict):
        return ", ".join(f"{count} {state}" for state, count in pages.items() if count) or "0"
    return _count(pages)


def _count(value: Any) -> str:
    if isinstance(value, list | dict):
        return str(len(value))
    return str(value) if isinstance(value, int) else "-"
