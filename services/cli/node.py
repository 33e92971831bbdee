"""`pegaflow node`: one tier in full, and drain it or take it back.

drain: no new saves, everything that reads goes on, over restarts too, until undrain. With --hand-over it leaves for good: other
nodes are asked to fetch what nobody else has. --wait returns when nothing is under way there, or handed over.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pegaflow.common.config import duration
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, PegaflowError, RemoteError
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Document, Dump, NodeDrain, NodeUndrain, Status
from pegaflow.services.cli import cluster, consent, target
from pegaflow.services.cli.caller import Caller
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.column import Column
from pegaflow.services.cli.listing import Listing

NAME = "node"
HELP = "one tier: show, drain, undrain"
LOOK_S = 0.2


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    show = verbs.add_parser("show", help="everything countable of one tier")
    show.add_argument("node", metavar="NODE", help="its name")
    cluster.add_options(show)
    show.set_defaults(run=_show)
    for verb, text, run in (("drain", "no new saves there", _drain), ("undrain", "saves again", _undrain)):
        one = verbs.add_parser(verb, help=text)
        one.add_argument("node", metavar="NODE", help="its name")
        target.add_options(one)
        consent.add_options(one)
        if verb == "drain":
            one.add_argument("--hand-over", action="store_true", help="it leaves for good: others fetch what only it has")
            one.add_argument("--wait", type=duration, metavar="TIME", help="until nothing is under way there, at most that long")
        one.set_defaults(run=run)


def _show(args: argparse.Namespace) -> int:
    async def look(at: Cluster) -> Listing:
        answer = await at.tell(named(at, args.node), Dump(), Document)
        return Listing(COLUMNS, [{"name": name, "value": value} for name, value in flat(document_of(answer))])

    return cluster.listed(args, look)


def flat(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value under its path, `pages.sealed`; lists of objects as `sessions.0.engine`."""
    for name, value in found.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(part, Mapping) for part in value):
            for number, part in enumerate(value):
                yield from flat(part, f"{path}.{number}.")
        else:
            yield path, value


def named(at: Cluster, node: str) -> Peer:
    """The tier of this name. Raises `unknown`, and says which there are."""
    for peer in at.tiers:
        if peer.node == node:
            return peer
    there = ", ".join(sorted(peer.node for peer in at.tiers)) or "none"
    raise RemoteError(ErrorCode.UNKNOWN, f"no node {node!r}; there are: {there}")


def _drain(args: argparse.Namespace) -> int:
    what = f"let node {args.node} take no new saves" + (", and hand its pages over to the others" if args.hand_over else "")
    return asyncio.run(_change(args, NodeDrain(args.hand_over), args.wait)) if consent.agreed(args, what) else 1


def _undrain(args: argparse.Namespace) -> int:
    what = f"let node {args.node} take saves again"
    return asyncio.run(_change(args, NodeUndrain(), None)) if consent.agreed(args, what) else 1


async def _change(args: argparse.Namespace, message: Message, wait_s: float | None) -> int:
    """0: done. 1: it did not come to rest within `wait_s`. Raises `PegaflowError`."""
    at = target.choose(args)
    async with Cluster(at) as found:
        try:
            peer = named(found, args.node)
        except RemoteError:
            for one in found.wrong:  # it may be one of those
                print(one.line(), file=sys.stderr)
            raise
        answer = await found.tell(peer, Status(), Document)
        control = str(document_of(answer).get("control") or peer.control)
        try:
            # An ipc path of another machine may be that of another tier on this one, so only this life may take it.
            await found.tell(peer._replace(endpoint=control), message, Done, epoch=answer.epoch)
        except PegaflowError as error:
            hint = " (its control is for its own machine: run this there)" if control.startswith("ipc://") else ""
            raise RemoteError(error.code, f"{error.text}{hint}") from None
    if wait_s is None:
        return 0
    return await _rest(at, peer, wait_s, bool(getattr(message, "hand_over", False)))


async def _rest(at: target.Target, peer: Peer, wait_s: float, hand_over: bool) -> int:
    loop = asyncio.get_running_loop()
    caller = Caller(at)
    until = loop.time() + wait_s
    try:
        while True:
            drain = document_of(await caller.ask(peer.endpoint, Status(), at.timeout_s)).get("drain")
            if isinstance(drain, Mapping) and _resting(drain, hand_over):
                return 0
            if loop.time() >= until:
                print(f"pegaflow node: {ErrorCode.DEADLINE}: not at rest yet: {drain}", file=sys.stderr)
                return 1
            await asyncio.sleep(LOOK_S)
    finally:
        caller.close()


def _resting(drain: Mapping[str, Any], hand_over: bool) -> bool:
    over = drain.get("hand_over")
    return bool(isinstance(over, Mapping) and over.get("done")) if hand_over else bool(drain.get("quiet"))


COLUMNS = (Column("NAME", "name"), Column("VALUE", "value"))
