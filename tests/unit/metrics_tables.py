"""The tables of docs/metrics.md."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
Metrics = dict[str, frozenset[str]]
"""Labels by name, as in the tables: counters end in _total."""


def documented() -> dict[str, Metrics]:
    """By heading."""
    found: dict[str, Metrics] = {}
    heading = ""
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if line.startswith("## "):
            heading = line[3:].partition(" (")[0]
            found[heading] = {}
        elif match := re.match(r"\| `(\w+)` \| ([\w, ]*) ?\| (.+) \|$", line):
            assert match[1] not in found[heading], f"{match[1]} stands there twice"
            found[heading][match[1]] = frozenset(match[2].replace(" ", "").split(",")) - {""}
    return found
