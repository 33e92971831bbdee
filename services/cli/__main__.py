"""`pegaflow`: the inspection tool."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pegaflow.common.version import package_version
from pegaflow.services.cli import engine, monitor, status
from pegaflow.services.cli.target import UsageError

EX_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Exit codes: 0 all is well, 1 something is not (see the command), 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="pegaflow", description="Looks at a running PegaFlow.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (status, monitor, engine):
        command.add_parser(commands)
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except UsageError as error:
        print(f"pegaflow {args.command}: {error}", file=sys.stderr)
        return EX_USAGE


if __name__ == "__main__":
    sys.exit(main())
