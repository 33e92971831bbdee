"""`pegaflow engine`: add an engine to a running router, remove one, list them."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import Any

from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.config import duration
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Document, EngineAdd, EngineRemove, Status
from pegaflow.services.cli.table import table
from pegaflow.services.cli.target import UsageError, checked

ROLES = ("prefill", "decode", "engine")
HEAD = ("ROLE", "URL", "HEALTHY", "BREAKER", "REQUESTS", "MODELS")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("engine", help="engines of a router: add, remove, list", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, text in (("list", "what the router knows of them"), ("add", "send it requests too"), ("remove", "send it no more")):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("--router", required=True, metavar="URL", help="the router's control endpoint")
        one.add_argument("--timeout", default="2s", metavar="TIME", help="how long to wait for the answer (default: 2s)")
        if verb != "list":
            one.add_argument("role", choices=ROLES)
            one.add_argument("url", help="the engine's base URL")
        one.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: done. 1: the router refused, or did not answer."""
    try:
        timeout_s = duration(args.timeout)
    except ValueError as error:
        raise UsageError(str(error)) from None
    (endpoint,) = checked((args.router,))
    ask: Message = Status()
    if args.verb != "list":
        ask = (EngineAdd if args.verb == "add" else EngineRemove)(args.role, args.url)
    try:
        answer = asyncio.run(_ask(endpoint, ask, timeout_s))
        if isinstance(answer, Document):
            print(_listed(answer), end="")
        elif not isinstance(answer, Done):
            raise RemoteError(ErrorCode.BAD_MESSAGE, f"answered with {type(answer).__name__}")
    except PegaflowError as error:
        print(f"pegaflow engine: {error.code}: {error.text}", file=sys.stderr)
        return 1
    return 0


async def _ask(endpoint: str, ask: Message, timeout_s: float) -> Any:
    factory = SocketFactory()
    client = RpcClient(factory, asyncio.get_running_loop(), endpoint)
    try:
        return await client.request(ask, timeout_s)
    finally:
        client.close()
        factory.close()


def _listed(document: Document) -> str:
    try:
        engines = json.loads(document.json)["engines"]
        rows = [
            (
                one["role"],
                one["url"],
                {True: "yes", False: "no", None: "?"}[one["healthy"]],
                one["breaker"],
                str(one["requests"]),
                ", ".join(map(str, one["models"])) or "-",
            )
            for one in engines
        ]
    except (ValueError, KeyError, TypeError):
        raise RemoteError(ErrorCode.BAD_MESSAGE, "this is no router's status") from None
    return table(HEAD, rows)
