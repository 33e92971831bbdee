"""Chunks of one stream that differ in nothing but their text and token ids: read and written without JSON. Pure.

    engine   head "text" middle [ids] tail      learnt from a chunk that was read as JSON
    client   head "text" middle [ids] tail      and from what it became

A chunk that has the engine's head, middle and tail is the one that was read, with another text and other ids: what was
decided for that one (no error in it, no end, these fields, that usage) holds for it too. Every other chunk is read.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

# Not empty: a chunk without text may be one that says nothing. Possessive, for nothing here is worth a second look.
_STRING: Final = re.compile(r'"((?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))++)"')
_IDS: Final = re.compile(r"\[((?:0|[1-9][0-9]{0,15})(?:, ?(?:0|[1-9][0-9]{0,15}))*+)\]")
_DECODER: Final = json.JSONDecoder()
_IDS_FIELD: Final = '"token_ids":'


class Said(NamedTuple):
    """What a chunk says. `text` and `ids_text` as JSON has them, without quotes and brackets."""

    text: str
    ids_text: str

    @property
    def plain(self) -> str:
        return self.text if "\\" not in self.text else str(json.loads(f'"{self.text}"'))

    @property
    def ids(self) -> list[int]:
        return [int(digits) for digits in self.ids_text.split(",")] if self.ids_text else []


class _Shape(NamedTuple):
    """`tail` None: no ids in it, `middle` is the end."""

    head: str
    middle: str
    tail: str | None


class Pattern:
    """`read` a chunk as it came, `write` it as the client gets it: two halves of one conversion."""

    __slots__ = ("_ids", "_mine", "_theirs")

    def __init__(self, theirs: _Shape, mine: _Shape) -> None:
        self._theirs = theirs
        self._mine = mine
        self._ids = theirs.tail is not None

    @classmethod
    def learn(cls, data: str, field: str, made: str, made_field: str, text: str, ids: list[int]) -> Pattern | None:
        """From one chunk's JSON and what it became, with the names of the fields that hold `text`; None where these are
        not plain to see.
        """
        theirs, mine = _shape(data, field, text, ids), _shape(made, made_field, text, ids)
        if theirs is None or mine is None or (ids and theirs.tail is None):
            return None
        return cls(theirs, mine)

    def read(self, data: str) -> Said | None:
        """None: it is another kind of chunk."""
        head, middle, tail = self._theirs
        if not data.startswith(head):
            return None
        found = _STRING.match(data, len(head))
        if found is None:
            return None
        at, ids = found.end(), ""
        if tail is not None:
            if not data.startswith(middle, at):
                return None
            listed = _IDS.match(data, at + len(middle))
            if listed is None:
                return None
            at, ids = listed.end(), listed[1]
        else:
            tail = middle
        return Said(found[1], ids) if len(data) - at == len(tail) and data.endswith(tail) else None

    def write(self, said: Said) -> str:
        head, middle, tail = self._mine
        if tail is None:
            return f'{head}"{said.text}"{middle}'
        return f'{head}"{said.text}"{middle}[{said.ids_text}]{tail}'


def _shape(raw: str, field: str, text: str, ids: list[int]) -> _Shape | None:
    # Within a string a quote is escaped, so what is found is the field's name; twice, and nobody knows which one it is.
    name = f'"{field}":'
    if raw.count(name) != 1 or not text:
        return None
    start = _after(raw, raw.index(name) + len(name))
    if raw[start : start + 1] != '"':
        return None
    said, end = _DECODER.raw_decode(raw, start)
    if said != text:
        return None
    if raw.count(_IDS_FIELD) > 1:
        return None
    at = raw.find(_IDS_FIELD, end)
    listed = None if at < 0 else _IDS.match(raw, _after(raw, at + len(_IDS_FIELD)))
    if listed is None or not ids:
        # Null, and no other ids may be elsewhere: what does not change is a part of the end.
        return _Shape(raw[:start], raw[end:], None) if listed is None else None
    if [int(digits) for digits in listed[1].split(",")] != ids:
        return None
    return _Shape(raw[:start], raw[end : listed.start()], raw[listed.end() :])


def _after(raw: str, at: int) -> int:
    while raw[at : at + 1] == " ":
        at += 1
    return at
