"""A message in one line for people, or as an object for programs."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pegaflow.common.wire.messages.catalogue import Delta
from pegaflow.common.wire.messages.saves import Grant, IntentSeen
from pegaflow.services.cli.table import printable

_STATES = ("gone", "pending", "sealed")
_STATUSES = ("granted", "have", "pending", "no_space", "refused")
_SHOWN = 4
_KEY_BYTES = 8


def summary(message: Any) -> str:
    """What matters of a message; unknown kinds show each field."""
    special = _SPECIAL.get(type(message))
    if special is not None:
        return printable(special(message))
    return printable(" ".join(f"{field.name}={_short(getattr(message, field.name))}" for field in dataclasses.fields(message)))


def as_object(message: Any) -> dict[str, Any]:
    """Every field; bytes and keys as hexadecimal text."""
    return {field.name: _plain(getattr(message, field.name)) for field in dataclasses.fields(message)}


def _named(codes: Sequence[int], names: Sequence[str]) -> str:
    counts = Counter(codes)
    return ", ".join(f"{count} {names[code] if code < len(names) else code}" for code, count in sorted(counts.items()))


def _keys(keys: Sequence[bytes]) -> str:
    # The fingerprint comes first and is the same for all keys of an engine: the end tells keys apart.
    return " ".join(key[-_KEY_BYTES:].hex() for key in keys[:_SHOWN]) + (" …" if len(keys) > _SHOWN else "")


def _delta(message: Delta) -> str:
    return f"{_named(message.states, _STATES)}: {_keys(message.keys)}"


def _grant(message: Grant) -> str:
    return f"intent={message.intent} grant={message.grant} {_named(message.statuses, _STATUSES)}"


def _intent(message: IntentSeen) -> str:
    requests = ",".join(message.requests)
    head = f"session={message.session:016x} intent={message.intent} {_named(message.statuses, _STATUSES)}"
    return f"{head} requests={requests}: {_keys(message.keys)}"


_SPECIAL: dict[type, Callable[[Any], str]] = {Delta: _delta, Grant: _grant, IntentSeen: _intent}


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:_KEY_BYTES].hex() + ("…" if len(value) > _KEY_BYTES else "") or "-"
    if isinstance(value, str):
        return value or "-"
    if isinstance(value, int):
        return f"{value:016x}" if value > 1 << 48 else str(value)
    if len(value) > _SHOWN:
        return f"[{len(value)}]"
    return "[" + ",".join(_short(item) for item in value) + "]"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, array):
        return list(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
