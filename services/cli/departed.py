"""Nodes that a metaserver has known and that are gone, out of its status document. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple


class Departed(NamedTuple):
    """A node's life that is over: `reason` dead, bye or replaced; `sealed` None: how many pages it had is not known.

    `endpoint`: where it was asked, empty if that is not known.
    """

    node: str
    epoch: str
    reason: str
    ago_ms: int
    sealed: int | None
    endpoint: str = ""


def departed(document: Mapping[str, Any]) -> list[Departed]:
    """All lives that are remembered, the latest last, as far as the document has the form that is expected."""
    rows = document.get("left", [])
    found = []
    for row in rows if isinstance(rows, list) else []:
        try:
            one = Departed(row["node"], row["epoch"], row["reason"], row["ago_ms"], row["sealed"], str(row.get("requests", "")))
        except (KeyError, TypeError):
            continue
        if isinstance(one.ago_ms, int) and isinstance(one.node, str) and isinstance(one.sealed, int | None):
            found.append(one)
    return found


def last_life(documents: Sequence[Mapping[str, Any]], node: str, epoch: str) -> dict[str, Any] | None:
    """How a node that is here ended the last time, out of all documents: `reason` bye, dead, replaced (at once by its next life),
    or silence, after which the same life came back.
    """
    ends = [one for document in documents for one in departed(document) if one.node == node]
    last = min(ends, key=lambda one: one.ago_ms, default=None)
    return last and {"reason": "silence" if last.epoch == epoch else last.reason, "ago_ms": last.ago_ms}


def missing(document: Mapping[str, Any], here: Collection[str], within_ms: int) -> list[Departed]:
    """Nodes that fell silent, at most so long ago, and are not back; each once."""
    found = {one.node: one for one in departed(document)}
    return [one for one in found.values() if one.reason == "dead" and one.node not in here and one.ago_ms <= within_ms]
