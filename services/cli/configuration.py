"""`pegaflow config`: look at the configuration of all services.

check: every table of the file, and whether its services fit together. show: every option with its value, where that comes from,
and whether SIGHUP changes it. Both see file and environment as a service would that is started here; `show --running` asks the
services what they use, their command lines included.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegaflow.common.config import EX_CONFIG, ConfigError, Loaded, resolve
from pegaflow.common.endpoints import host_port
from pegaflow.common.live_config import options_of
from pegaflow.common.wire.messages.facts import Facts
from pegaflow.common.wire.messages.operate import Document
from pegaflow.services.cli import cluster, output
from pegaflow.services.cli.cluster import Cluster, document_of
from pegaflow.services.cli.column import Column
from pegaflow.services.cli.doctor.patient import Patient
from pegaflow.services.cli.listing import Listing, Wrong
from pegaflow.services.cli.target import UsageError, add_routers

NAME = "config"
HELP = "check the configuration, show every option"
SERVICES = {
    "tier": ("pegaflow.services.tier.config", "TierConfig"),
    "metaserver": ("pegaflow.services.metaserver.config", "MetaserverConfig"),
    "router": ("pegaflow.services.router.config", "RouterConfig"),
    "watch": ("pegaflow.services.watch.config", "WatchConfig"),
    "cli": ("pegaflow.services.cli.config", "CliConfig"),
}

MUST_BE_TOLD = ("router", "watch")
"""An empty table of theirs configures nothing: they have to be told of engines, and of programs."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(NAME, help=HELP, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    check = verbs.add_parser("check", help="0: services would start with it; 78: they would not")
    show = verbs.add_parser("show", help="every option: value, source, reloadable")
    show.add_argument("--running", action="store_true", help="ask the services that run")
    show.add_argument("--changed", action="store_true", help="only options that are not at their default")
    cluster.add_options(show)
    add_routers(show)
    check.add_argument("--config", metavar="FILE", help="TOML file (default: $PEGAFLOW_CONFIG)")
    for one, run in ((check, _check), (show, _show)):
        one.add_argument("--service", action="append", choices=SERVICES, help="only this one; may be repeated")
        one.set_defaults(run=run)


def _check(args: argparse.Namespace) -> int:
    """0: it can be used. 78: it cannot, one line for each thing on stderr."""
    loaded, wrong = _loaded(args)
    complaints = [f"{one.code}: {one.text}" for one in wrong]
    complaints += [f"{ConfigError.code}: {text}" for text in clashes({name: one.value for name, one in loaded.items()})]
    for text in complaints:
        print(f"pegaflow config: {text}", file=sys.stderr)
    if complaints:
        return EX_CONFIG
    print(f"config ok: {', '.join(loaded)}")
    return 0


def _show(args: argparse.Namespace) -> int:
    if args.running:
        return cluster.listed(args, lambda at: _running(at, args))

    async def look() -> Listing:
        loaded, wrong = _loaded(args)
        rows = [row(name, option) for name, one in loaded.items() for option in options_of(one.value, one.sources)]
        return Listing(COLUMNS, _chosen(rows, args), wrong)

    return output.present(args, look)


async def _running(at: Cluster, args: argparse.Namespace) -> Listing:
    answers = await at.ask_each([*at.metaservers, *at.tiers, *at.routers], Facts(), Document)
    patients = [Patient(answer.service, answer.node, document_of(answer)) for _, answer in answers]
    rows = [row(patient.service, option, patient.node) for patient in patients for option in patient.rows("options")]
    return Listing(COLUMNS, [one for one in _chosen(rows, args) if not args.service or one["service"] in args.service])


def row(service: str, option: Mapping[str, Any], node: str | None = None) -> dict[str, Any]:
    """`node` None: not one that runs."""
    return {"service": service, "node": node, **{name: option.get(name) for name in ("name", "value", "source", "reloadable")}}


def _chosen(rows: list[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    return [one for one in rows if not args.changed or one["source"] != "default"]


def _loaded(args: argparse.Namespace) -> tuple[dict[str, Loaded[Any]], list[Wrong]]:
    """What can be used of the chosen services, and what is wrong with the others. Without a choice: those that the file has."""
    path = args.config or os.environ.get("PEGAFLOW_CONFIG")
    if path:
        _readable(path)
    chosen = args.service or _tables(path)
    argv = ["--config", path] if path else []
    loaded: dict[str, Loaded[Any]] = {}
    wrong = []
    for name in chosen:
        module, config = SERVICES[name]
        try:
            cls = getattr(importlib.import_module(module), config)
            loaded[name] = resolve(cls, section=name, argv=argv, environ=os.environ)
        except ConfigError as error:
            wrong.append(Wrong(name, "", "", error.code, str(error)))
        except ImportError as error:
            wrong.append(Wrong(name, "", "", "not_installed", f"{error}: pip install 'pegaflow[{name}]'"))
    return loaded, wrong


def _readable(path: str) -> None:
    """Raises `UsageError` if it is not, whichever services are chosen."""
    try:
        Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def _tables(path: str | None) -> list[str]:
    """The services that the file or the environment configure; without any, those that need no options."""
    named = {name for name in SERVICES if any(variable.startswith(f"PEGAFLOW_{name.upper()}_") for variable in os.environ)}
    if path:
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError:
            return ["tier"]  # which says what is wrong with it
        if unknown := [name for name in document if name not in SERVICES]:
            return [*named, "tier"] if unknown else []
        named |= {name for name, table in document.items() if table or name not in MUST_BE_TOLD}
    return [name for name in SERVICES if name in named] or ["tier", "metaserver", "cli"]


def clashes(configs: dict[str, Any]) -> list[str]:
    """What cannot be meant between tables of one file, both values said."""
    found = []
    taken: dict[tuple[str, str], str] = {}
    for service, config in configs.items():
        for name in ("requests", "events", "control", "health_port", "port"):
            address = _address(config, name)
            if address is None:
                continue
            mine = f"[{service}] {name}"
            other = taken.setdefault(address, mine)
            if other != mine:
                found.append(f"{other} and {mine} are both port {address[1]} of {address[0]}: each needs its own")
    metaserver = configs.get("metaserver")
    if metaserver is not None:
        for service in ("tier", "router"):
            asked = getattr(configs.get(service), "metaserver", ())
            for endpoint in (asked,) if isinstance(asked, str) else asked:
                host, port = host_port(endpoint)
                listens = host_port(metaserver.requests)
                if endpoint and host == listens[0] and port != listens[1]:
                    found.append(f"[{service}] metaserver is {endpoint}, [metaserver] requests {metaserver.requests}")
    return found


def _address(config: Any, name: str) -> tuple[str, str] | None:
    value = getattr(config, name, None)
    if isinstance(value, str):
        host, port = host_port(value)
        return (host, port) if port and port != "*" else None
    if not value:
        return None
    return str(getattr(config, "health_host" if name == "health_port" else "host")), str(value)


COLUMNS = (
    Column("SERVICE", "service"),
    Column("NODE", "node", wide=True),
    Column("OPTION", "name"),
    Column("VALUE", "value"),
    Column("SOURCE", "source"),
    Column("RELOADABLE", "reloadable"),
)
