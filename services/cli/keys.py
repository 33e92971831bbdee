"""`pegaflow keys`: make a key for a service, an engine or an operator; show the public half of one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pegaflow.common.bus.key_list import key_line, parse_keys
from pegaflow.common.bus.keyring import PUBLIC_SUFFIX, Keyring, new_pair
from pegaflow.common.bus.roles import Identity, Role
from pegaflow.common.private import write_secret
from pegaflow.common.wire.errors import PegaflowError
from pegaflow.services.cli.target import UsageError

NAME = "keys"
HELP = "keys for CURVE: make one, show one"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb, text in (
        ("gen", "make a pair: FILE (secret, 0600) and FILE.pub"),
        ("show", "the line of a secret key's public half"),
    ):
        one = verbs.add_parser(verb, help=text, description=f"{text}. Prints the line for curve_allowed.")
        one.add_argument("file", type=Path, metavar="FILE", help="the secret key, for curve_key_file")
        one.add_argument("--role", choices=list(Role), required=True, help="what its holder is")
        one.add_argument("--node", default="", help="the node it is on, for a tier: it can then speak for no other")
        one.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: done. 1: there is such a file already, or it is no key."""
    if len(args.node.split()) > 1 or "#" in args.node:
        raise UsageError(f"--node {args.node!r}: a name without blanks and #")
    secret: Path = args.file
    try:
        if args.verb == "gen":
            line = _generate(secret, Role(args.role), args.node)
        else:
            line = key_line(Identity(Keyring(Role(args.role), secret, None).public_hex, Role(args.role), args.node))
    except PegaflowError as error:
        print(f"pegaflow keys: {error.code}: {error.text}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"pegaflow keys: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    print(line)
    return 0


def _generate(secret: Path, role: Role, node: str) -> str:
    """Raises OSError; then neither file is there that was not before."""
    public_hex, secret_hex = new_pair()
    line = key_line(Identity(public_hex, role, node))
    assert parse_keys(line, "")
    public = secret.with_name(secret.name + PUBLIC_SUFFIX)
    write_secret(secret, secret_hex + "\n")
    try:
        with public.open("x", encoding="ascii") as file:
            file.write(line + "\n")
        public.chmod(0o644)
    except OSError:
        secret.unlink()
        raise
    return line
