"""The one number that both ends of every socket must share.

The protocol number changes when a peer of the old number could misread a message or the slot table. Adding a kind or a
trailing field does not change it: unknown kinds are answered `unsupported`, unknown trailing fields are ignored.
"""

from __future__ import annotations

from importlib import metadata

PROTOCOL = 1


def package_version() -> str:
    """The installed version of this package, or `unknown` in a bare source tree."""
    try:
        return metadata.version("pegaflow")
    except metadata.PackageNotFoundError:
        return "unknown"
