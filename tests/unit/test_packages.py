"""What a wheel would contain."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_every_package_is_listed() -> None:
    listed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {
        "pegaflow." + ".".join(path.parent.relative_to(CHECKOUT).parts)
        for top in ("common", "connector", "services")
        for path in (CHECKOUT / top).rglob("__init__.py")
    }
    assert set(listed) == found
