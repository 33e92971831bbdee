"""`pegaflow dump`: everything that services say of themselves, secrets removed, in one JSON file for whoever helps.

Status, dump and facts (versions, limits, options) of every service, the metaservers' lists of nodes, and who did not answer. The
file is readable by its owner only. It holds names, addresses and paths, but neither page contents nor prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegaflow.common.secrets import without_secrets
from pegaflow.common.version import package_version
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import LocalError, PegaflowError
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.facts import Facts
from pegaflow.common.wire.messages.operate import Document, Dump, Status
from pegaflow.services.cli import target
from pegaflow.services.cli.cluster import Cluster, Peer, document_of
from pegaflow.services.cli.listing import Wrong
from pegaflow.services.cli.summary import as_object

NAME = "dump"
HELP = "everything for whoever helps, secrets removed"
QUESTIONS: dict[str, Message] = {"status": Status(), "dump": Dump(), "facts": Facts()}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="a new file; -: standard output")
    target.add_options(parser)
    target.add_routers(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: everybody answered. 1: somebody did not; the file has the others, and who it was."""
    at = target.choose(args)
    found = asyncio.run(_collected(at))
    text = json.dumps(without_secrets(found), indent=1) + "\n"
    if str(args.output) == "-":
        print(text, end="")
    else:
        write(args.output, text)
        print(f"{args.output}: {len(found['services'])} services, {len(found['wrong'])} without an answer", file=sys.stderr)
    for one in found["wrong"]:
        print(f"{one['service']} {one['node']} at {one['endpoint']}: {one['code']}: {one['text']}", file=sys.stderr)
    return 1 if found["wrong"] else 0


def write(path: Path, text: str) -> None:
    """A new file, 0600. Raises `bad_config` where it cannot be made."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise LocalError("not_written", f"{path}: {error.strerror}") from None


async def _collected(at: target.Target) -> dict[str, Any]:
    async with Cluster(at) as cluster:
        peers = [*cluster.metaservers, *cluster.tiers, *cluster.routers]
        services = await asyncio.gather(*(_service(cluster, peer) for peer in peers))
        return document([one for one in services if one is not None], cluster.wrong, time.time(), package_version())


def document(services: list[dict[str, Any]], wrong: list[Wrong], now: float, package: str) -> dict[str, Any]:
    """The file. `now`: seconds since 1970."""
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    return {"made_at": made_at, "package": package, "services": services, "wrong": [one._asdict() for one in wrong]}


async def _service(cluster: Cluster, peer: Peer) -> dict[str, Any] | None:
    answers = await asyncio.gather(*(cluster.ask(peer, message, Document) for message in QUESTIONS.values()))
    told = dict(zip(QUESTIONS, answers, strict=True))
    first = next((answer for answer in answers if answer is not None), None)
    if first is None:
        return None
    if first.service != "metaserver":
        return service(peer.endpoint, first, told)
    return service(peer.endpoint, first, told) | {"nodes": nodes_of(await cluster.ask(peer, Nodes(), NodeList))}


def service(endpoint: str, first: Document, told: Mapping[str, Document | None]) -> dict[str, Any]:
    """One service. `first`: any answer of it; `told`: all by what was asked, None: no answer to that."""
    named = {"service": first.service, "node": first.node, "epoch": f"{first.epoch:016x}", "endpoint": endpoint}
    return named | {name: None if answer is None else _word(answer) for name, answer in told.items()}


def nodes_of(answer: NodeList | None) -> dict[str, Any] | None:
    """What a metaserver has besides."""
    return None if answer is None else as_object(answer)


def _word(answer: Document) -> Any:
    try:
        return document_of(answer)
    except PegaflowError as error:
        return {"code": error.code, "text": error.text}
