"""`pegaflow send`: any message of the wire to one service, and its answer as JSON.

  pegaflow send probe '{"keys": ["00ab…"]}' --tier tcp://10.0.0.1:7410
  pegaflow send log_level '{"level": "debug"}' --tier ipc:///run/pegaflow/control.sock --yes

Bytes and keys are hexadecimal text, columns lists of numbers; fields that have a default may be left out (docs/protocol.md). The
answer is one line. What is not known to change nothing needs --yes.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from array import array
from typing import Any, get_type_hints

from pegaflow.common.wire import codec, messages
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.services.cli import consent, target
from pegaflow.services.cli.caller import Caller
from pegaflow.services.cli.summary import as_object
from pegaflow.services.cli.target import UsageError

NAME = "send"
HELP = "any message of the wire to one service"
_OF_ALL = ("ping", "status", "dump", "facts", "reach", "nodes", "sessions", "probe", "locate")
_INSPECTION = ("inspect", "find", "story", "recall", "leases", "grants", "namespaces", "digest", "believe")
LOOKS = frozenset((*_OF_ALL, *_INSPECTION))
"""Kinds that change nothing. `sync` is none: it begins a snapshot."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", metavar="KIND", help="of the message; `list` shows all")
    parser.add_argument("fields", nargs="?", default="{}", metavar="JSON", help="an object of its fields (default: {})")
    target.add_options(parser)
    consent.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: answered, with whatever. 1: no answer, or an error as the answer."""
    assert messages.__all__  # importing them registers all kinds
    if args.kind == "list":
        print("\n".join(kind for kind in codec.kinds()))
        return 0
    at = target.choose(args)
    message = made(args.kind, args.fields)
    endpoints = (*at.tiers, *at.metaservers)
    if len(endpoints) != 1:
        raise UsageError(f"a message goes to one service, these are {len(endpoints)}: name it by --tier or --metaserver")
    if args.kind not in LOOKS and not consent.agreed(args, f"send {args.kind} to {endpoints[0]}, which may change something"):
        return 1
    answer = asyncio.run(_sent(at, endpoints[0], message))
    print(json.dumps(as_row(answer)))
    return 0


def as_row(answer: Any) -> dict[str, Any]:
    """For programs."""
    return {"kind": answer.KIND, "message": as_object(answer)}


def made(kind: str, text: str) -> Any:
    """The message of a kind out of a JSON object. Raises `UsageError` saying which field does not fit."""
    try:
        cls: Any = codec.message_class(kind)
    except KeyError:
        raise UsageError(f"no kind {kind!r}; `pegaflow send list` shows all") from None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the fields are no JSON: {error}") from None
    if not isinstance(given, dict):
        raise UsageError("the fields are no JSON object")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := sorted(given.keys() - fields.keys()):
        raise UsageError(f"{kind} has no field {unknown[0]}; it has: {', '.join(fields) or 'none'}")
    hints = get_type_hints(cls, include_extras=True)
    values = {}
    for name, field in fields.items():
        if name in given:
            values[name] = _field(f"{kind}.{name}", hints[name].__metadata__[0], given[name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UsageError(f"{kind} needs the field {name}")
    message = cls(**values)
    try:
        return codec.decode_body(kind, codec.encode_body(message))  # checked as the other side will
    except (PegaflowError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise UsageError(f"{kind}: {error}") from None


def _field(where: str, tag: str, value: Any) -> Any:
    try:
        match tag:
            case "bytes":
                return bytes.fromhex(value)
            case "keys":
                return [bytes.fromhex(part) for part in value]
            case "u32" | "u64":
                return array("I" if tag == "u32" else "Q", value)
            case _:
                return value
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}") from None


async def _sent(at: target.Target, endpoint: str, message: Any) -> Any:
    caller = Caller(at)
    try:
        return await caller.ask(endpoint, message, at.timeout_s)
    finally:
        caller.close()
