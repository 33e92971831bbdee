"""One option of a service: a dataclass field with a help text, a parser, a check, and whether a reload may change it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

_METADATA: Final = "pegaflow.option"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What `option` keeps with a field."""

    help: str
    parse: Callable[[str], Any] | None
    check: Callable[[Any], str | None] | None
    secret: bool
    reload: bool


def option(
    default: T,
    *,
    help: str,
    parse: Callable[[str], Any] | None = None,
    check: Callable[[Any], str | None] | None = None,
    secret: bool = False,
    reload: bool = False,
) -> T:
    """A dataclass field that is also a flag, a TOML key and an environment variable.

    Args:
        default: the value when no layer names the field; not checked by `check`.
        help: one line for ``--help``.
        parse: text → value; raises ValueError. Default: by the field's type. For `tuple` fields: one element's.
        check: returns what is wrong with a value, or None.
        secret: ``--print-config`` shows only whether it is set.
        reload: SIGHUP takes a new value into use; the others count from the next start.
    """
    info = Option(help=help, parse=parse, check=check, secret=secret, reload=reload)
    field: T = dataclasses.field(default=default, metadata={_METADATA: info})
    return field


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A field's type taken apart: `base`, or `base | None`, or `tuple[base, ...]`."""

    base: type[Any]
    many: bool = False
    optional: bool = False


def kind_of(name: str, hint: Any) -> Kind:
    """Raises TypeError for a type that no option can have."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return Kind(base=args[0], many=True)
    if origin in (typing.Union, types.UnionType) and len(args) == 2 and args[1] is type(None):
        return Kind(base=args[0], optional=True)
    if isinstance(hint, type):
        return Kind(base=hint)
    raise TypeError(f"field {name}: {hint} is not a type that a config field can have")


def convert(kind: Kind, info: Option, value: Any) -> Any:
    """The value of a field from what a layer says. Raises ValueError."""
    if kind.many:
        if not isinstance(value, list):
            raise ValueError(f"needs a list, got {value!r}")
        converted: Any = tuple(_convert_one(kind.base, info.parse, part) for part in value)
    elif kind.optional and value == "":
        converted = None  # the only way to say "not set" over a lower layer that set it
    else:
        converted = _convert_one(kind.base, info.parse, value)
    if info.check is not None and converted is not None:
        complaint = info.check(converted)
        if complaint:
            raise ValueError(complaint)
    return converted


def _convert_one(base: type[Any], parse: Callable[[str], Any] | None, value: Any) -> Any:
    if isinstance(value, bool) or base is bool:
        return _boolean(base, value)
    if not isinstance(value, str | int | float):
        raise ValueError(f"needs {_article(base)}, got {value!r}")
    if parse is not None:
        return parse(str(value))
    if base in (str, Path) and not isinstance(value, str):
        raise ValueError(f"needs {_article(base)}, got {value!r}")
    if issubclass(base, Enum):
        names = [str(member.value) for member in base]
        text = str(value).strip().lower()
        if text not in names:
            raise ValueError(f"{value!r} is not one of {', '.join(names)}")
        return base(text)
    try:
        return base(str(value).strip())
    except ValueError:
        raise ValueError(f"needs {_article(base)}, got {value!r}") from None


def _boolean(base: type, value: Any) -> bool:
    if base is not bool:
        raise ValueError(f"needs {_article(base)}, got {str(value).lower()}")
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ValueError(f"needs true or false, got {value!r}")


def _article(base: type) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}
    return names.get(base, f"a {base.__name__}")


def info_of(field: dataclasses.Field[Any]) -> Option:
    """Raises TypeError for a field that was not made with `option`."""
    info = field.metadata.get(_METADATA)
    if not isinstance(info, Option):
        raise TypeError(f"config field {field.name} was not made with option()")
    return info
