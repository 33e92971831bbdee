"""One column of a list, declared once for every output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Row = Mapping[str, Any]
"""A row by the columns' `name`s: raw values that JSON can say, sizes and times as numbers with their unit in the name."""


class Tone(StrEnum):
    """What a value means to whoever reads it; a terminal shows it as a colour."""

    PLAIN = ""
    GOOD = "32"
    DOUBT = "33"
    BAD = "31"


def text(value: Any) -> str:
    """Any value in a cell: `-` for what is not there."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "-"
    return str(value)


def _plain(_: Any) -> Tone:
    return Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Column:
    """`head` is the title for people, and empty for what only programs get; `name` the row's field and its name in JSON.

    `show` makes the cell of the raw value, `wide` cells stand in the wide table only, `tone` colours the cell.
    """

    head: str
    name: str
    show: Callable[[Any], str] = text
    wide: bool = False
    tone: Callable[[Any], Tone] = _plain
