"""`pegaflow monitor`: what is being published, live, one line per message: time node topic kind seq summary.

Topics are prefixes: c catalogue, i intents, n nodes, s. sessions (s.<16 hex> one of them); none means all. Listens at the
metaservers and at every tier they know, those that come later too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.config import duration
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli import target
from pegaflow.services.cli.summary import as_object, summary
from pegaflow.services.cli.tap import Tap, Tapped

POKE_S = 0.1
DISCOVER_S = 1.0
_RAW_BYTES = 64


NAME = "monitor"
HELP = "what is being published, live"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="prefix of a topic; default: all")
    parser.add_argument("--events", action="append", metavar="URL", help="listen here only; may be repeated")
    target.add_options(parser)
    parser.add_argument("-n", "--count", type=_positive, metavar="N", help="end after N messages")
    parser.add_argument("--for", dest="span", type=duration, metavar="TIME", help="end after that long, such as 10s")
    parser.add_argument("--raw", action="store_true", help="do not decode bodies: show their size and first bytes")
    parser.add_argument("-o", "--output", choices=("text", "jsonl"), default="text", help="for people (default) or for programs")
    parser.set_defaults(run=run)


def _positive(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError(text)
    return count


def run(args: argparse.Namespace) -> int:
    """0: as many came as asked for, or it was stopped. 1: nobody to listen to, or fewer than N in the time."""
    at = target.choose(args)
    fixed = target.checked(tuple(args.events or ()), at.ring)
    if fixed:
        at = at._replace(metaservers=(), tiers=())
    show = _json_line if args.output == "jsonl" else _text_line
    left = args.count

    def on_message(tapped: Tapped) -> None:
        nonlocal left
        if left == 0:
            return
        print(show(tapped, args.raw), flush=True)
        if left is not None:
            left -= 1
            if left == 0:
                monitor.enough.set()

    monitor = Monitor([topic.encode() for topic in args.topics] or [b""], on_message)
    try:
        reached = asyncio.run(monitor.run(at, fixed, args.span))
    except KeyboardInterrupt:
        return 0
    if not reached:
        print("pegaflow: unreachable: no metaserver answered, so nobody is known to listen to", file=sys.stderr)
    return 0 if reached and not left else 1


class Monitor:
    """Listens until `enough` is set or the time is up."""

    def __init__(self, prefixes: list[bytes], on_message: Callable[[Tapped], None]) -> None:
        self._prefixes, self._on_message = prefixes, on_message
        self.enough = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, at: target.Target, fixed: tuple[str, ...], span_s: float | None) -> bool:
        """False: at the start no metaserver answered. Raises what writing a line raised."""
        loop = asyncio.get_running_loop()
        factory = at.factory()
        tap = Tap(factory, loop, self._prefixes, self._guarded)
        clients = [RpcClient(factory, loop, url) for url in at.metaservers]
        tiers = [RpcClient(factory, loop, url) for url in at.tiers]
        poker = loop.create_task(_poke(tap))
        discovery: asyncio.Task[None] | None = None
        try:
            for endpoint in fixed:
                tap.listen(endpoint)
            if not fixed:
                if not await self._discover(tap, clients, tiers, at.timeout_s):
                    return False
                discovery = loop.create_task(self._follow(tap, clients, tiers, at.timeout_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(span_s):
                    await self.enough.wait()
            if self._failure is not None:
                raise self._failure
            return True
        finally:
            for task in (poker, discovery):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            tap.close()
            for client in [*clients, *tiers]:
                client.close()
            factory.close()

    def _guarded(self, tapped: Tapped) -> None:
        try:
            self._on_message(tapped)
        except OSError as error:  # standard output has gone
            self._failure = error
            self.enough.set()

    async def _follow(self, tap: Tap, metaservers: list[RpcClient], tiers: list[RpcClient], timeout_s: float) -> None:
        while True:
            await asyncio.sleep(DISCOVER_S)
            await self._discover(tap, metaservers, tiers, timeout_s)

    async def _discover(self, tap: Tap, metaservers: list[RpcClient], tiers: list[RpcClient], timeout_s: float) -> bool:
        """Listens to everyone who is known now and stops listening to those who are not. False: nobody answered."""
        answers = await asyncio.gather(
            *(client.request(Status(), timeout_s) for client in [*metaservers, *tiers]),
            *(client.request(Nodes(), timeout_s) for client in metaservers),
            return_exceptions=True,
        )
        known: set[str] = set()
        for answer in answers:
            if isinstance(answer, NodeList):
                known.update(answer.events)
            elif isinstance(answer, Document):
                with contextlib.suppress(ValueError, AttributeError):
                    known.add(str(json.loads(answer.json).get("events", "")))
            elif isinstance(answer, BaseException) and not isinstance(answer, PegaflowError):
                raise answer
        known.discard("")
        if all(isinstance(answer, BaseException) for answer in answers):
            return False
        for endpoint in known - tap.endpoints:
            try:
                tap.listen(endpoint)
            except PegaflowError as error:
                print(f"pegaflow: {error}", file=sys.stderr)
        if not any(isinstance(answer, BaseException) for answer in answers):
            for endpoint in tap.endpoints - known:
                tap.leave(endpoint)
        return True


async def _poke(tap: Tap) -> None:
    while True:
        await asyncio.sleep(POKE_S)
        tap.poke()


def _text_line(tapped: Tapped, raw: bool) -> str:
    now = time.time()
    clock = f"{time.strftime('%H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"
    lost = f"({tapped.lost} lost) " if tapped.lost else ""
    topic = tapped.envelope.topic.decode(errors="backslashreplace")
    return f"{clock} {tapped.header.node} {topic} {tapped.envelope.kind} {tapped.header.seq} {lost}{_body(tapped, raw)}".rstrip()


def _body(tapped: Tapped, raw: bool) -> str:
    if raw:
        body = tapped.envelope.body
        return f"{len(body)} bytes {body[:_RAW_BYTES].hex()}{'…' if len(body) > _RAW_BYTES else ''}"
    return summary(tapped.message) if tapped.message is not None else tapped.wrong


def _json_line(tapped: Tapped, raw: bool) -> str:
    line: dict[str, Any] = {
        "time": time.time(),
        "endpoint": tapped.endpoint,
        "node": tapped.header.node,
        "epoch": f"{tapped.header.epoch:016x}",
        "topic": tapped.envelope.topic.decode(errors="backslashreplace"),
        "kind": tapped.envelope.kind,
        "seq": tapped.header.seq,
    }
    if tapped.lost:
        line["lost"] = tapped.lost
    if raw:
        line["body"] = tapped.envelope.body.hex()
    elif tapped.message is None:
        line["wrong"] = tapped.wrong
    else:
        line["message"] = as_object(tapped.message)
    return json.dumps(line)
