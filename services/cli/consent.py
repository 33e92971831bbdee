"""Commands that change something ask before."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pegaflow.services.cli.listing import Wrong
from pegaflow.services.cli.target import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--yes`, the same for every command that changes something."""
    parser.add_argument("-y", "--yes", action="store_true", help="do it without asking")


def agreed(args: argparse.Namespace, what: str) -> bool:
    """Shall we? False: the person at the terminal does not want to. Raises `UsageError` where nobody can be asked."""
    if args.yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"this would {what}, and there is no terminal to ask at: say --yes")
    print(f"{what[0].upper()}{what[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was changed", file=sys.stderr)
    return False


def told(done: Sequence[str], wrong: Sequence[Wrong]) -> int:
    """Says what was done, and what was not; the exit code."""
    for line in done:
        print(line)
    for one in wrong:
        print(one.line(), file=sys.stderr)
    if not done and not wrong:
        print("nobody is there to do it", file=sys.stderr)
    return 0 if done and not wrong else 1
