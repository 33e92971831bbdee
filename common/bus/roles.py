"""Who may ask whom for what, pure: the roles that a public key can have, and one table per service.

A peer that came in without CURVE (ipc, or loopback without keys) has no identity and may do everything: the file system or the
machine is the border there (docs/security.md). What the table does not name, an operator may ask and nobody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pegaflow.common.bus.endpoint import parse_endpoint
from pegaflow.common.wire.errors import PegaflowError


class Role(StrEnum):
    """What the holder of a key is."""

    ENGINE = "engine"
    TIER = "tier"
    METASERVER = "metaserver"
    ROUTER = "router"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Identity:
    """A listed key: `key` in hex; `node` empty: the list does not say on which node its holder is."""

    key: str
    role: Role
    node: str = ""


_ALL: Final = frozenset(Role)
_OPERATOR: Final = frozenset({Role.OPERATOR})
_ENGINE: Final = frozenset({Role.ENGINE})
_TIER: Final = frozenset({Role.TIER})
_ROUTER: Final = frozenset({Role.ROUTER, Role.OPERATOR})
_METASERVER: Final = frozenset({Role.METASERVER, Role.OPERATOR})
_LOCATORS: Final = frozenset({Role.TIER, Role.ROUTER, Role.OPERATOR})

ASKS: Final[Mapping[Role, Mapping[str, frozenset[Role]]]] = {
    Role.TIER: {
        "ping": _ALL,
        "attach": _ENGINE,
        "detach": _ENGINE,
        "lookup": _ENGINE,
        "loading": _ENGINE,
        "release": _ENGINE,
        "cancel": _ENGINE,
        "pin": _TIER,
        "unpin": _TIER,
        "take": _TIER,
        "sync": _METASERVER,
        "sessions": _ROUTER,
        "probe": _ROUTER,
        "keep": _ROUTER,
        "unkeep": _ROUTER,
    },
    Role.METASERVER: {
        "ping": _ALL,
        "hello": _TIER,
        "bye": _TIER,
        "locate": _LOCATORS,
        "nodes": _LOCATORS,
    },
    Role.ROUTER: {"ping": _ALL},
}
"""Service → kind of request → roles that may send it. `status`, `dump`, `drain` and the like are an operator's everywhere."""

HEARS: Final[Mapping[Role, frozenset[Role]]] = {
    Role.TIER: frozenset({Role.METASERVER, Role.OPERATOR}),
    Role.METASERVER: frozenset({Role.ROUTER, Role.OPERATOR}),
    Role.ROUTER: frozenset(),
}
"""Service → roles that may subscribe to its events over TCP. Engines are told over ipc."""

_SENDER: Final[Mapping[str, str]] = {"hello": "node", "bye": "node", "locate": "asker", "pin": "reader", "take": "node"}
"""Kind → field in which the sender names its node."""
_ADVERTISED: Final[Mapping[str, tuple[str, ...]]] = {"hello": ("requests", "events", "control"), "take": ("requests",)}
"""Kind → fields with endpoints at which the sender itself answers."""
_ON_ITS_MACHINE: Final = frozenset({"control"})
"""Fields that may hold an ipc path, for operators on that machine; they name the life of the tier that they mean."""


def may_ask(service: Role, role: Role, kind: str) -> bool:
    return role in ASKS[service].get(kind, _OPERATOR)


def may_hear(service: Role, role: Role) -> bool:
    return role in HEARS[service]


def false_claim(sender: Identity, message: Any) -> str:
    """What the message says of its sender that the sender's key does not bear out; empty: nothing.

    A tier speaks for the node that its key is listed with, and advertises endpoints under its own key only: else one tier could
    take another's place, or lead everyone to a third party. An ipc path has no key, and is another socket on each machine.
    """
    claimed = getattr(message, _SENDER.get(message.KIND, ""), "")
    if sender.node and claimed and claimed != sender.node:
        return f"speaks for node {claimed[:64]!r}, its key is that of {sender.node!r}"
    for name in _ADVERTISED.get(message.KIND, ()):
        try:
            endpoint = parse_endpoint(getattr(message, name))
        except PegaflowError:
            continue  # refused as such
        if endpoint.is_tcp and endpoint.key != sender.key:
            return f"advertises {name} under a key that is not its own"
        if not endpoint.is_tcp and name not in _ON_ITS_MACHINE:
            return f"advertises {name} as an ipc path, which has no key: set {name} to tcp://…"
    return ""
