"""`pegaflow monitor`: what is being published, live, one line per message: time node topic kind seq summary.

Topics are prefixes: c catalogue, i intents, n nodes, s. sessions (s.<16 hex> one of them); none means all. Listens at the
metaservers and at every tier they know, those that come later too. --filter looks into the messages; of several all must hold:

  node=NAME      who says it, or which node came or went       kind=KIND   such as delta, intent_seen, grant
  engine=NAME    intents and answers of this engine            key=HEX     first digits of a page's key, or of its content hash
  request=ID     intents of this request (its beginning does)
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

import zmq
from pegaflow.common.config import duration
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.operate import Document, Status
from pegaflow.services.cli import target
from pegaflow.services.cli.access import said
from pegaflow.services.cli.caller import Caller
from pegaflow.services.cli.cluster import document_of
from pegaflow.services.cli.filter import Field, Filter, engines_of
from pegaflow.services.cli.knock import Knock
from pegaflow.services.cli.listing import Wrong
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
    parser.add_argument(
        "--filter", action="append", type=Filter.parse, metavar="FIELD=VALUE", dest="filters", help="only such; may be repeated"
    )
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
    """0: as many came as asked for, or it was stopped. 1: nobody to listen to or who lets us, or fewer than N in the time."""
    fixed: tuple[str, ...] = ()
    filters: list[Filter] = args.filters or []
    by_engine = any(one.field is Field.ENGINE for one in filters)
    if args.events and by_engine:
        raise target.UsageError("--filter engine=… asks services, because messages do not name engines: leave --events away")
    if args.events:
        chosen = target.choose(argparse.Namespace(**vars(args) | {"metaserver": None, "tier": args.events}))
        at, fixed = chosen._replace(tiers=()), chosen.tiers
    else:
        at = target.choose(args)
    show = _json_line if args.output == "jsonl" else _text_line
    left = args.count

    def on_message(tapped: Tapped) -> None:
        nonlocal left
        if left == 0 or not all(one.holds(tapped, monitor.engines) for one in filters):
            return
        print(show(tapped, args.raw), flush=True)
        if left is not None:
            left -= 1
            if left == 0:
                monitor.enough.set()

    monitor = Monitor([topic.encode() for topic in args.topics] or [b""], on_message, by_engine)
    try:
        reached = asyncio.run(monitor.run(at, fixed, args.span))
    except KeyboardInterrupt:
        return 0
    if not reached:
        print("pegaflow monitor: unreachable: nobody is known to listen to, or nobody lets us", file=sys.stderr)
    return 0 if reached and not left else 1


class Monitor:
    """Listens until `enough` is set or the time is up. `by_engine`: keeps in `engines` the names of all by their sessions."""

    def __init__(self, prefixes: list[bytes], on_message: Callable[[Tapped], None], by_engine: bool = False) -> None:
        self._prefixes, self._on_message, self._by_engine = prefixes, on_message, by_engine
        self.engines: dict[int, str] = {}
        self.enough = asyncio.Event()
        self._failure: BaseException | None = None
        self._barred: set[str] = set()
        self._doors: dict[str, asyncio.Task[None]] = {}

    async def run(self, at: target.Target, fixed: tuple[str, ...], span_s: float | None) -> bool:
        """False: at the start nobody answered, or no publisher lets us listen. Raises what writing a line raised."""
        loop = asyncio.get_running_loop()
        caller = Caller(at)
        tap = Tap(caller.factory, loop, self._prefixes, self._guarded)
        poker = loop.create_task(self._poke(tap, at, caller))
        discovery: asyncio.Task[None] | None = None
        try:
            for endpoint in fixed:
                tap.listen(endpoint)
            if not fixed:
                if not await self._discover(tap, at, caller, loud=True):
                    return False
                discovery = loop.create_task(self._follow(tap, at, caller))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(span_s):
                    await self.enough.wait()
            if self._failure is not None:
                raise self._failure
            return not self._nobody(tap)
        finally:
            for task in (poker, discovery, *self._doors.values()):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task
            tap.close()
            caller.close()

    def _guarded(self, tapped: Tapped) -> None:
        try:
            self._on_message(tapped)
        except OSError as error:  # standard output has gone
            self._failure = error
            self.enough.set()

    async def _poke(self, tap: Tap, at: target.Target, caller: Caller) -> None:
        while True:
            for endpoint in tap.endpoints - self._doors.keys():
                self._doors[endpoint] = asyncio.create_task(self._door(endpoint, tap, at, caller))
            await asyncio.sleep(POKE_S)
            tap.poke()

    async def _door(self, endpoint: str, tap: Tap, at: target.Target, caller: Caller) -> None:
        """A publisher that refuses a subscriber says nothing, for ever: so look whether it lets us in, once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + at.timeout_s
        knock = Knock(caller.factory, loop, endpoint, at.timeout_s, zmq.SUB)
        try:
            while not knock.let_in and loop.time() < until:
                await asyncio.sleep(POKE_S / 2)
            access = knock.verdict()
        finally:
            knock.close()
        if access is not None:
            text = said(access, at.ring.public_hex if at.ring is not None else "")
            print(Wrong("publisher", "", endpoint, access, text).line(), file=sys.stderr)
            self._barred.add(endpoint)
            if self._nobody(tap):
                self.enough.set()

    def _nobody(self, tap: Tap) -> bool:
        return bool(self._barred) and self._barred >= tap.endpoints

    async def _follow(self, tap: Tap, at: target.Target, caller: Caller) -> None:
        while True:
            await asyncio.sleep(DISCOVER_S)
            await self._discover(tap, at, caller, loud=False)

    async def _discover(self, tap: Tap, at: target.Target, caller: Caller, loud: bool) -> bool:
        """Listens to everyone who is known now and stops listening to those who are not. False: nobody answered.

        `loud`: says who did not, and why.
        """
        asked = [(url, Status()) for url in (*at.metaservers, *at.tiers)] + [(url, Nodes()) for url in at.metaservers]
        answers = await asyncio.gather(*(caller.ask(url, ask, at.timeout_s) for url, ask in asked), return_exceptions=True)
        known: set[str] = set()
        tiers: set[str] = set()
        wrong: dict[str, PegaflowError] = {}
        for (url, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, PegaflowError):
                wrong.setdefault(url, answer)
            if isinstance(answer, NodeList):
                known.update(answer.events)
                tiers.update(answer.requests)
            elif isinstance(answer, Document):
                with contextlib.suppress(PegaflowError):
                    told = document_of(answer)
                    known.add(str(told.get("events", "")))
                    self.engines |= engines_of(told)
            elif isinstance(answer, BaseException) and not isinstance(answer, PegaflowError):
                raise answer
        if self._by_engine:
            wrong |= await self._name_engines(sorted(tiers - {*at.tiers, ""}), at, caller)
        for url, error in wrong.items() if loud else ():
            print(Wrong("", "", url, error.code, error.text).line(), file=sys.stderr)
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

    async def _name_engines(self, tiers: list[str], at: target.Target, caller: Caller) -> dict[str, PegaflowError]:
        """Asks tiers that a metaserver knows who is attached; who does not answer."""
        answers = await asyncio.gather(*(caller.ask(url, Status(), at.timeout_s) for url in tiers), return_exceptions=True)
        wrong: dict[str, PegaflowError] = {}
        for url, answer in zip(tiers, answers, strict=True):
            if isinstance(answer, Document):
                with contextlib.suppress(PegaflowError):
                    self.engines |= engines_of(document_of(answer))
            elif isinstance(answer, PegaflowError):
                wrong[url] = answer
            elif isinstance(answer, BaseException):
                raise answer
        return wrong


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
    return json.dumps(as_row(tapped, raw, time.time()))


def as_row(tapped: Tapped, raw: bool, now: float) -> dict[str, Any]:
    """For programs. `now`: seconds since 1970."""
    line: dict[str, Any] = {
        "time": now,
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
    return line
