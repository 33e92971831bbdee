"""Which messages `pegaflow monitor` shows: `--filter FIELD=VALUE`, of several all must hold. No I/O."""

from __future__ import annotations

import argparse
import contextlib
import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pegaflow.common.keys import FINGERPRINT_BYTES
from pegaflow.common.wire.messages.catalogue import Delta, NodeDown, NodeUp
from pegaflow.common.wire.messages.saves import IntentSeen
from pegaflow.services.cli.tap import Tapped

_SESSION = b"s."


class Field(StrEnum):
    """What a filter looks at."""

    NODE = "node"
    KIND = "kind"
    ENGINE = "engine"
    REQUEST = "request"
    KEY = "key"


class Filter(NamedTuple):
    """One condition. A message that does not say what `field` asks for does not meet it."""

    field: Field
    value: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """`FIELD=VALUE`. Raises what argparse takes."""
        name, mark, value = text.partition("=")
        if name not in list(Field):
            near = difflib.get_close_matches(name, list(Field), n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; fields are {', '.join(Field)}"
            raise argparse.ArgumentTypeError(f"no field {name!r}{hint}")
        if not mark or not value:
            raise argparse.ArgumentTypeError(f"say {name}=VALUE")
        field = Field(name)
        if field is Field.KEY:
            value = value.lower()
            if not set(value) <= set("0123456789abcdef"):
                raise argparse.ArgumentTypeError(f"key={value} is not hexadecimal")
        return cls(field, value)

    def holds(self, tapped: Tapped, engines: Mapping[int, str]) -> bool:
        """`engines`: their names by session, as far as they are known."""
        message = tapped.message
        match self.field:
            case Field.NODE:  # who says it, or of whom it is said
                return tapped.header.node == self.value or (isinstance(message, NodeUp | NodeDown) and message.node == self.value)
            case Field.KIND:
                return tapped.envelope.kind == self.value
            case Field.ENGINE:
                return engines.get(_session(tapped)) == self.value
            case Field.REQUEST:
                return isinstance(message, IntentSeen) and any(one.startswith(self.value) for one in message.requests)
            case Field.KEY:
                return isinstance(message, Delta | IntentSeen) and any(_begins(key, self.value) for key in message.keys)


def _session(tapped: Tapped) -> int:
    """0: of none."""
    topic = tapped.envelope.topic
    if topic.startswith(_SESSION):
        with contextlib.suppress(ValueError):
            return int(topic[len(_SESSION) :], 16)
    return tapped.message.session if isinstance(tapped.message, IntentSeen) else 0


def _begins(key: bytes, digits: str) -> bool:
    """As `page show` takes it: the first digits of the key, or of its content hash."""
    return key.hex().startswith(digits) or key[FINGERPRINT_BYTES:].hex().startswith(digits)


def engines_of(told: Mapping[str, Any]) -> dict[int, str]:
    """Engines by session, out of a tier's status document, of which any field may be missing or of another type."""
    found: dict[int, str] = {}
    sessions = told.get("sessions")
    for row in sessions if isinstance(sessions, list) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[int(row["session"], 16)] = str(row["engine"])
    return found
