"""Configuration in four layers: defaults < TOML file < environment < command line.

A service writes its options as a frozen dataclass and calls :func:`load`:

    @dataclass(frozen=True, slots=True)
    class TierConfig:
        pool_size: int = option(4 << 30, help="bytes of the pool", parse=size)
        wait: float = option(0.05, help="how long a grant may take", parse=duration)
        peers: tuple[str, ...] = option((), help="metaserver endpoints")

    loaded = load(TierConfig, section="tier", prog="pegaflow-tier", description="…")

Each field becomes the flag ``--pool-size``, the key ``pool_size`` in the table ``[tier]`` and the variable
``PEGAFLOW_TIER_POOL_SIZE`` (comma-separated where the flag may be repeated). A layer that names a field
replaces what lower layers said, lists included. Unknown keys, flags and variables with the service's prefix
are errors, with the nearest known name. A ``__post_init__`` that raises ValueError, or LocalError for a code of its own, checks
fields against each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import os
import sys
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, TypeVar

from pegaflow.common import faults
from pegaflow.common.options import Kind, convert, info_of, kind_of, option
from pegaflow.common.quantity import duration, size
from pegaflow.common.secrets import without_secrets
from pegaflow.common.version import package_version
from pegaflow.common.wire.errors import LocalError

__all__ = ["EX_CONFIG", "ConfigError", "Loaded", "duration", "load", "option", "render", "resolve", "size"]

EX_CONFIG: Final = 78
"""sysexits.h: distinct from a crash, so that supervisord does not restart what cannot start."""

SECTIONS: Final = ("tier", "metaserver", "router", "watch", "cli")
"""Tables that may appear in the file; a service reads only its own."""

_FILE_VARIABLE: Final = "PEGAFLOW_CONFIG"

T = TypeVar("T")


class ConfigError(Exception):
    """What the operator wrote cannot be used; the text says where and what would be right."""

    code = "bad_config"

    def __init__(self, text: str, code: str = code) -> None:
        super().__init__(text)
        self.code = code


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """`value` is the config; `sources` says for each field which layer decided it."""

    value: T
    sources: Mapping[str, str]


def load(
    cls: type[T],
    *,
    section: str,
    prog: str,
    description: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded[T]:
    """Read all layers for a service's main().

    Exits the process (SystemExit) with 78 and one line on stderr for a config error, and with 0 after
    ``--help``, ``--version``, ``--print-config`` or ``--check-config``.
    """
    try:
        loaded, asked = _resolve(cls, section, prog, description, argv, environ)
        _arm(os.environ if environ is None else environ)
    except ConfigError as error:
        print(f"{prog}: {error.code}: {error}", file=sys.stderr)
        raise SystemExit(EX_CONFIG) from None
    if asked.print_config:
        print(render(loaded, section), end="")
        raise SystemExit(0)
    if asked.check_config:
        print(f"{prog}: config ok")
        raise SystemExit(0)
    return loaded


def _arm(environ: Mapping[str, str]) -> None:
    try:
        faults.arm(environ)
    except LocalError as error:
        raise ConfigError(error.text) from None


def resolve(
    cls: type[T],
    *,
    section: str,
    prog: str = "pegaflow",
    description: str = "",
    argv: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Loaded[T]:
    """Like :func:`load`, but raises ConfigError and takes nothing from the process unless it is given."""
    loaded, _ = _resolve(cls, section, prog, description, argv, environ if environ is not None else {})
    return loaded


def render(loaded: Loaded[Any], section: str) -> str:
    """The config as TOML that :func:`load` reads back, but for passwords; the source of each value is a comment."""
    lines = [f"[{section}]"]
    for field in dataclasses.fields(loaded.value):
        value = getattr(loaded.value, field.name)
        source = loaded.sources[field.name]
        if info_of(field).secret and value:
            lines.append(f"# {field.name} is set  # {source}")
        elif value is None:
            lines.append(f"# {field.name} is not set  # {source}")
        else:
            shown = without_secrets(value) if isinstance(value, str) else value
            lines.append(f"{field.name} = {_toml(shown)}  # {source}")
    return "\n".join(lines) + "\n"


def _resolve(
    cls: type[T],
    section: str,
    prog: str,
    description: str,
    argv: Sequence[str] | None,
    environ: Mapping[str, str] | None,
) -> tuple[Loaded[T], argparse.Namespace]:
    environ = os.environ if environ is None else environ
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    kinds = {name: kind_of(name, hints[name]) for name in fields}
    asked = _parser(prog, description, section, fields, kinds).parse_args(argv)

    raw: dict[str, tuple[str, Any]] = {}
    path = asked.config or environ.get(_FILE_VARIABLE)
    if path:
        for name, value in _read_file(Path(path), section).items():
            if name not in fields:
                raise ConfigError(f"{path}: unknown key {name!r} in [{section}]{_nearest(name, fields)}")
            raw[name] = (f"file {path}", value)
    prefix = f"PEGAFLOW_{section.upper()}_"
    for variable, text in environ.items():
        if not variable.startswith(prefix):
            continue
        name = variable[len(prefix) :].lower()
        if name not in fields:
            known = [prefix + known.upper() for known in fields]
            raise ConfigError(f"unknown environment variable {variable}{_nearest(variable, known)}")
        value = [part for part in text.split(",") if part.strip()] if kinds[name].many else text
        raw[name] = (f"environment {variable}", value)
    for name in fields:
        value = getattr(asked, name)
        if value is not None:
            raw[name] = ("command line", value)

    values: dict[str, Any] = {}
    sources = dict.fromkeys(fields, "default")
    for name, (source, value) in raw.items():
        try:
            values[name] = convert(kinds[name], info_of(fields[name]), value)
        except ValueError as error:
            raise ConfigError(f"{source}: {name}: {error}") from None
        sources[name] = source
    try:
        return Loaded(value=cls(**values), sources=sources), asked
    except LocalError as error:
        raise ConfigError(error.text, error.code) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"command line: {message}")


def _parser(
    prog: str,
    description: str,
    section: str,
    fields: Mapping[str, dataclasses.Field[Any]],
    kinds: Mapping[str, Kind],
) -> argparse.ArgumentParser:
    # Abbreviated flags would change meaning when a later version adds a flag.
    parser = _Parser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE", help=f"TOML file, its table [{section}] is read")
    parser.add_argument("--check-config", action="store_true", help="check all layers and exit")
    parser.add_argument("--print-config", action="store_true", help="print every value and its source, and exit")
    parser.add_argument("--version", action="version", version=f"%(prog)s {package_version()}")
    for name, field in fields.items():
        flag = "--" + name.replace("_", "-")
        info, kind = info_of(field), kinds[name]
        shown = f"{info.help} (default: {_shown(field.default)})".replace("%", "%%")
        if kind.base is bool and not kind.many:
            parser.add_argument(flag, dest=name, help=shown, action=argparse.BooleanOptionalAction)
            continue
        metavar = "|".join(str(m.value) for m in kind.base) if issubclass(kind.base, Enum) else None
        action = "append" if kind.many else "store"
        parser.add_argument(flag, dest=name, help=shown, action=action, metavar=metavar)
    return parser


def _shown(default: Any) -> str:
    if default is None or default == () or default == "":
        return "none"
    return str(default.value) if isinstance(default, Enum) else str(default)


def _read_file(path: Path, section: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    known = {*SECTIONS, section}
    for name, value in document.items():
        if name not in known:
            raise ConfigError(f"{path}: unknown table [{name}]{_nearest(name, known)}")
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {name} must be a table")
    table: dict[str, Any] = document.get(section, {})
    return table


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    # A JSON string is a TOML basic string, except for DEL, which TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
