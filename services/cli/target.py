"""What the commands look at: endpoints from the command line, else from file and environment."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from pegaflow.common.bus.keyring import Keyring, check_connects, keyring
from pegaflow.common.bus.roles import Role
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.config import ConfigError, duration, resolve
from pegaflow.common.wire.errors import LocalError
from pegaflow.services.cli.config import DEFAULT_METASERVER, CliConfig


class UsageError(Exception):
    """The command line or the configuration asks for something impossible: exit code 2."""


class Target(NamedTuple):
    """Request endpoints (of routers: control endpoints), and how many seconds a look at all of them may take."""

    metaservers: tuple[str, ...]
    tiers: tuple[str, ...]
    timeout_s: float
    ring: Keyring | None = None
    routers: tuple[str, ...] = ()

    def factory(self) -> SocketFactory:
        """For this command's sockets."""
        return SocketFactory(self.ring)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what to look at, the same for every command."""
    parser.add_argument(
        "--metaserver", action="append", metavar="URL", help=f"its request endpoint (default: {DEFAULT_METASERVER})"
    )
    parser.add_argument(
        "--tier", "--endpoint", action="append", metavar="URL", dest="tier", help="request endpoint of a tier; may be repeated"
    )
    parser.add_argument("--timeout", metavar="TIME", help="how long it may take, such as 500ms (default: 2s)")
    add_key(parser)
    add_config(parser)


def add_routers(parser: argparse.ArgumentParser) -> None:
    """For a command that looks at routers as well."""
    text = "a router's control endpoint, to look at it too (default: those of [cli], unless --metaserver or --tier is given)"
    parser.add_argument("--router", action="append", metavar="URL", dest="routers", help=text)


def add_key(parser: argparse.ArgumentParser) -> None:
    """The key to come in with, the same for every command."""
    parser.add_argument("--curve-key-file", metavar="FILE", help="an operator's secret key; endpoints then end in #KEY")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Where its other options come from, the same for every command."""
    parser.add_argument("--config", metavar="FILE", help="TOML file; its table [cli] is read (default: $PEGAFLOW_CONFIG)")


def choose(args: argparse.Namespace) -> Target:
    """Raises `UsageError`. Endpoints on the command line replace all others: `--tier` alone asks no metaserver."""
    try:
        config = resolve(
            CliConfig, section="cli", argv=["--config", args.config] if args.config else [], environ=os.environ
        ).value
        timeout_s = duration(args.timeout) if args.timeout else config.timeout
        ring = keyring(Role.OPERATOR, args.curve_key_file or config.curve_key_file, "")
    except (ConfigError, ValueError) as error:
        raise UsageError(str(error)) from None
    except LocalError as error:
        raise UsageError(f"{error.code}: {error.text}") from None
    if timeout_s <= 0:
        raise UsageError("--timeout must be above 0")
    metaservers, tiers = tuple(args.metaserver or ()), tuple(args.tier or ())
    routers = tuple(getattr(args, "routers", None) or ())
    if not metaservers and not tiers:
        metaservers, tiers, routers = config.metaserver, config.tier, routers or config.router
        if not metaservers and not tiers:
            metaservers = (DEFAULT_METASERVER,)
    return Target(checked(metaservers, ring), checked(tiers, ring), timeout_s, ring, checked(routers, ring))


def chosen(args: argparse.Namespace, endpoint: str) -> Target:
    """For a command with an endpoint of its own, which is then the only tier. Raises `UsageError`."""
    return choose(argparse.Namespace(**vars(args) | {"metaserver": None, "tier": [endpoint]}))


def at_router(args: argparse.Namespace) -> Target:
    """For a command at one router: `--router`, else the only one of the configuration, as `tiers`. Raises `UsageError`."""
    if args.router:
        return chosen(args, args.router)
    known = choose(argparse.Namespace(**vars(args) | {"metaserver": None, "tier": None})).routers
    if len(known) != 1:
        raise UsageError(f"say --router URL: {'several routers are' if known else 'no router is'} in the configuration")
    return chosen(args, known[0])


def checked(endpoints: tuple[str, ...], ring: Keyring | None) -> tuple[str, ...]:
    """Raises `UsageError` for an endpoint that ZeroMQ, or this operator's key, cannot use."""
    try:
        return tuple(check_connects(ring, endpoint) for endpoint in endpoints)
    except LocalError as error:
        raise UsageError(error.text) from None
