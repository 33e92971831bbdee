"""The installed package's version."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def package_version() -> str:
    """The version pip knows; "0+unknown" when the source tree is imported without being installed."""
    try:
        return metadata.version("pegaflow")
    except metadata.PackageNotFoundError:
        return "0+unknown"
