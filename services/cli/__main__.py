"""`pegaflow`: the inspection tool."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import ModuleType

from pegaflow.common.version import package_version
from pegaflow.common.wire.errors import ErrorCode, PegaflowError
from pegaflow.services.cli import (
    bench,
    catalogue,
    check,
    completion,
    configuration,
    dump,
    engine,
    intents,
    keys,
    leases,
    monitor,
    node,
    nodes,
    page,
    ping,
    send,
    sessions,
    status,
    top,
    why,
)
from pegaflow.services.cli.doctor import command as doctor
from pegaflow.services.cli.doctor import fingerprints
from pegaflow.services.cli.parser import EX_USAGE, Parser
from pegaflow.services.cli.target import UsageError

EX_WRONG = 1
EX_STOPPED = 130

QUESTIONS: tuple[tuple[str, tuple[ModuleType, ...]], ...] = (
    ("Is everybody well?", (status, nodes, doctor, fingerprints, check, ping)),
    ("Why was this a miss? Where is this page?", (why, page)),
    ("Who is attached, who holds what?", (sessions, leases, intents)),
    ("Does the metaserver believe the right thing?", (catalogue,)),
    ("What is going on?", (top, monitor, bench)),
    ("What can I change?", (node, engine, send)),
    ("What helps?", (configuration, keys, dump, completion)),
)
"""Commands by the question they answer. A command's module has NAME, HELP and `add_parser(commands)`."""

_EPILOG = """\
Exit codes: 0 well, 1 something is not (it says what), 2 wrong usage. Data is on stdout, talk on stderr.
Looks at the metaserver on this machine unless --metaserver or --tier says otherwise, or PEGAFLOW_CLI_METASERVER, or [cli] in
$PEGAFLOW_CONFIG; routers are found by --router, PEGAFLOW_CLI_ROUTER, or [cli]. What to type when: docs/troubleshooting.md.
docs/cli.md has every command with its columns; `pegaflow COMMAND --help` its options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 all is well, 1 something is not (see the command), 2 wrong usage.

    Whatever goes wrong is one line on stderr; `--debug` shows where it came from. A command may have a code of its own, `failed`,
    for when it could not say what it was asked for.
    """
    args, rest = build().parse_known_args(argv)
    if rest:
        args.refuse(f"unrecognized arguments: {' '.join(rest)}")
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return EX_STOPPED
    except BrokenPipeError:  # the reader, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit does not fail again
        return int(getattr(args, "failed", 0))
    except UsageError as error:
        return _said(args, getattr(args, "failed", EX_USAGE), str(error))
    except PegaflowError as error:
        return _said(args, getattr(args, "failed", EX_WRONG), f"{error.code}: {error.text}")
    except Exception as error:
        hint = "" if args.debug else " (--debug shows where)"
        text = f"{ErrorCode.INTERNAL}: {type(error).__name__}: {' '.join(str(error).split())}{hint}"
        return _said(args, getattr(args, "failed", EX_WRONG), text)


def _said(args: argparse.Namespace, code: int, line: str) -> int:
    if args.debug:
        traceback.print_exc()
    print(f"pegaflow {args.command}: {line}", file=sys.stderr)
    return code


def build() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="pegaflow",
        usage="pegaflow COMMAND [OPTION…]",
        description="Looks at a running PegaFlow.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version()}")
    parser.add_argument("--debug", action="store_true", help="show the trace of an error")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS, prog="pegaflow", parser_class=Parser
    )
    for _, modules in QUESTIONS:
        for module in modules:
            module.add_parser(commands)
    for leaf in leaves(parser):
        leaf.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        leaf.set_defaults(refuse=leaf.error)
    parser.description = f"{parser.description}\n\n{_by_question()}"
    return parser


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Parsers of commands that have no commands below."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for one in action.choices.values():
            yield from leaves(one)


def _by_question() -> str:
    lines: list[str] = []
    for question, modules in QUESTIONS:
        lines.append(question)
        lines += [f"  {module.NAME:<14}{module.HELP}" for module in modules]
        lines.append("")
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    sys.exit(main())
