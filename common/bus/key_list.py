"""The list of keys that may come in, pure: one line per key, as `authorized_keys` of ssh has them.

# lines like this one, and empty ones, are skipped
5f2c…  tier      node-a     # 64 hex digits, a role, and for a tier or an engine the node that it is on (optional)
90ab…  operator
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pegaflow.common.bus.endpoint import KEY_HEX, is_key
from pegaflow.common.bus.roles import Identity, Role

KeyList = Mapping[str, Identity]
"""Public key in hex → who holds it."""


def parse_keys(text: str, source: str) -> KeyList:
    """Raises ValueError naming `source` and the line."""
    found: dict[str, Identity] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}:{number}"
        if not 2 <= len(words) <= 3:
            raise ValueError(f"{where}: expected KEY ROLE, or KEY ROLE NODE")
        key, role, node = words[0].lower(), words[1], words[2] if len(words) == 3 else ""
        if not is_key(key):
            raise ValueError(f"{where}: a public key has {KEY_HEX} hex digits")
        if role not in list(Role):
            raise ValueError(f"{where}: role {role[:32]!r} is not one of {', '.join(Role)}")
        if key in found:
            raise ValueError(f"{where}: this key is listed twice")
        found[key] = Identity(key, Role(role), node)
    return MappingProxyType(found)


def key_line(identity: Identity) -> str:
    """The line of one key."""
    return " ".join(filter(None, (identity.key, str(identity.role), identity.node)))
