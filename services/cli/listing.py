"""What a list command found, and how it looks: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pegaflow.services.cli.column import Column, Row, Tone
from pegaflow.services.cli.table import table


class Output(StrEnum):
    """`-o`: table and wide for people, json (one document) and jsonl (one line per row) for programs."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"


class Wrong(NamedTuple):
    """Something that is not well: who, where, and a stable code with its text."""

    service: str
    node: str
    endpoint: str
    code: str
    text: str

    def line(self) -> str:
        """For people."""
        who = " ".join(part for part in (self.service, self.node) if part and part != "?")
        where = f" at {self.endpoint}" if self.endpoint else ""
        return f"{who or 'somebody'}{where}: {self.code}: {self.text}"


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under their columns, what is `wrong` (then the exit code is 1), and `notes` for people, said on stderr.

    `below`: further tables for people, whose rows programs find inside the rows of this one.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    wrong: Sequence[Wrong] = ()
    notes: Sequence[str] = ()
    below: Sequence[Listing] = ()

    def objects(self) -> list[dict[str, Any]]:
        """Every row with every column, in order, raw."""
        return [{column.name: row.get(column.name) for column in self.columns} for row in self.rows]

    def render(self, output: Output, colour: bool = False) -> str:
        """What goes to stdout, ending in a newline; empty if there is nothing to say."""
        match output:
            case Output.JSON:
                document = {"rows": self.objects(), "wrong": [one._asdict() for one in self.wrong]}
                return json.dumps(document, indent=2) + "\n"
            case Output.JSONL:
                return "".join(json.dumps(row) + "\n" for row in self.objects())
            case Output.TABLE | Output.WIDE:
                wide = output is Output.WIDE
                return "\n".join(listing._table(wide, colour) for listing in (self, *self.below))

    def _table(self, wide: bool, colour: bool) -> str:
        if not self.columns:
            return ""
        shown = [column for column in self.columns if column.head and (wide or not column.wide)]
        cells = [[column.show(row.get(column.name)) for column in shown] for row in self.rows]
        tones = [[column.tone(row.get(column.name)) if colour else Tone.PLAIN for column in shown] for row in self.rows]
        return table([column.head for column in shown], cells, tones)
