"""What counts as a secret, for everything that shows a process's inside: dumps, documents, options.

Public on purpose: paths of key files, public CURVE keys behind endpoints, fingerprints, NONE_HASH.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REMOVED = "(removed)"
_NAMES = re.compile(r"(^|_)(token|secret|password|passwd|nonce|api_key|private_key|curve_key|credential)s?$", re.IGNORECASE)
_URL_USER = re.compile(r"(?<=://)[^/\s]+@")  # up to the last: a password may have one itself
_BEARER = re.compile(r"(?i)\b(bearer\s+|sk-)[\w.~+/=-]{4,}")


def without_secrets(value: Any, name: str = "") -> Any:
    """A copy of a JSON-able value: what a secret's name has is removed, and users and passwords out of URLs."""
    if isinstance(value, Mapping):
        named = value.get("name")
        if isinstance(named, str) and "value" in value:  # an option
            return {key: without_secrets(part, named if key == "value" else key) for key, part in value.items()}
        return {key: without_secrets(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(part, name) for part in value]
    if isinstance(value, str) and _NAMES.search(name) and value not in ("", "(set)", "(not set)"):
        return REMOVED
    return _BEARER.sub(REMOVED, _URL_USER.sub(f"{REMOVED}@", value)) if isinstance(value, str) else value
