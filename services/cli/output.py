"""How a list command ends up on a terminal or in a pipe: `-o`, `--watch`, colour, and what is said on stderr.

A command gives `present` a coroutine that looks once and returns a `Listing`. Data goes to stdout, talk to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TextIO

from pegaflow.common.quantity import duration
from pegaflow.services.cli.listing import Listing, Output

WATCH = "2s"
HOME_AND_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

Look = Callable[[], Awaitable[Listing]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """`-o` and `--watch`, the same for every list command."""
    add_output(parser)
    again = f"look again, each TIME (default: {WATCH}), until stopped"
    parser.add_argument("--watch", nargs="?", const=WATCH, type=pause, metavar="TIME", help=again)


def add_output(parser: argparse.ArgumentParser) -> None:
    """`-o` alone, for a command that looks again by itself."""
    parser.add_argument(
        "-o",
        "--output",
        choices=[str(output) for output in Output],
        default=str(Output.TABLE),
        help="table or wide for people, json or jsonl for programs (default: table)",
    )


def pause(text: str) -> float:
    """Seconds between two looks. Raises what argparse takes."""
    seconds = duration(text)
    if seconds < 0.1:
        raise argparse.ArgumentTypeError("at least 100ms")
    return seconds


def present(args: argparse.Namespace, look: Look) -> int:
    """Looks once, or until it is stopped. 0: all is well. 1: something in the (last) listing is `wrong`."""
    output, code = Output(args.output), 0
    people = output in (Output.TABLE, Output.WIDE)
    painted = people and colourful(sys.stdout)
    began = 0.0
    try:
        while True:
            if args.watch and began:
                time.sleep(max(0.0, began + args.watch - time.monotonic()))
            first, began = not began, time.monotonic()
            found = asyncio.run(_once(look))
            if args.watch and people:
                sys.stdout.write(HOME_AND_CLEAR if sys.stdout.isatty() else "" if first else "\n")
            sys.stdout.write(found.render(output, painted))
            sys.stdout.flush()
            for line in (*(one.line() for one in found.wrong), *found.notes):
                print(line, file=sys.stderr)
            code = 1 if found.wrong else 0
            if not args.watch:
                return code
    except KeyboardInterrupt:
        if not args.watch:
            raise
        return code


async def _once(look: Look) -> Listing:
    return await look()


def colourful(stream: TextIO) -> bool:
    """Colour is for terminals only, and not where NO_COLOR is set (https://no-color.org) or the terminal has none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
