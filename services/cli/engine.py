"""`pegaflow engine`: add an engine to a running router, remove one, list them."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Document, EngineAdd, EngineRemove, Status
from pegaflow.services.cli import consent, output, target
from pegaflow.services.cli.caller import Caller
from pegaflow.services.cli.cluster import document_of
from pegaflow.services.cli.column import Column, Tone
from pegaflow.services.cli.listing import Listing
from pegaflow.services.cli.target import Target, add_key, at_router

NAME = "engine"
HELP = "engines of a router: which are healthy (list), add, remove"
ROLES = ("prefill", "decode", "engine")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, text in (("list", "what the router knows of them"), ("add", "send it requests too"), ("remove", "send it no more")):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("--router", metavar="URL", help="the router's control endpoint (default: the one of [cli])")
        add_key(one)
        one.add_argument("--timeout", metavar="TIME", help="how long to wait for the answer (default: 2s)")
        target.add_config(one)
        if verb == "list":
            output.add_options(one)
        else:
            one.add_argument("role", choices=ROLES)
            one.add_argument("url", help="the engine's base URL")
            consent.add_options(one)
        one.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: done. 1: the router refused, or did not answer, or the person at the terminal did."""
    at = at_router(args)
    if args.verb == "list":
        return output.present(args, lambda: _list(at))
    what = "send requests to" if args.verb == "add" else "send no more requests to"
    if not consent.agreed(args, f"let the router {what} {args.role} {args.url}"):
        return 1
    ask = (EngineAdd if args.verb == "add" else EngineRemove)(args.role, args.url)
    asyncio.run(_ask(at, ask, Done))
    return 0


async def _ask(at: Target, ask: Message, wanted: type[Any]) -> Any:
    caller = Caller(at)
    try:
        answer = await caller.ask(at.tiers[0], ask, at.timeout_s)
    finally:
        caller.close()
    if not isinstance(answer, wanted):
        raise RemoteError(ErrorCode.BAD_MESSAGE, f"answered with {type(answer).__name__}")
    return answer


async def _list(at: Target) -> Listing:
    document = await _ask(at, Status(), Document)
    try:
        engines = document_of(document)["engines"]
        names = [column.name for column in COLUMNS]
        return Listing(COLUMNS, [{name: one[name] for name in names} for one in ({"why": None} | row for row in engines)])
    except (PegaflowError, KeyError, TypeError):
        raise RemoteError(ErrorCode.BAD_MESSAGE, "this is no router's status") from None


def _well(healthy: Any) -> Tone:
    return {True: Tone.GOOD, False: Tone.BAD}.get(healthy, Tone.DOUBT)


def _healthy(healthy: Any) -> str:
    return {True: "yes", False: "no"}.get(healthy, "?")


COLUMNS = (
    Column("ROLE", "role"),
    Column("URL", "url"),
    Column("HEALTHY", "healthy", _healthy, tone=_well),
    Column("BREAKER", "breaker"),
    Column("REQUESTS", "requests"),
    Column("LEAVING", "leaving", lambda leaving: "yes" if leaving else "no"),
    Column("MODELS", "models"),
    Column("WHY NOT", "why"),
)
