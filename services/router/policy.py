"""Which engine gets the next leg: the least loaded healthy one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """`load`: legs that this router has open there; `turn`: when it was last picked, as a rising number."""

    name: str
    load: int
    turn: int


def least_loaded(candidates: Iterable[Candidate], avoid: frozenset[str]) -> str | None:
    """The name of the least loaded, the one picked longest ago among equals; None when there is none.

    `avoid` is a wish: an engine that just failed this request is still better than none.
    """
    ranked = sorted(candidates, key=lambda one: (one.name in avoid, one.load, one.turn))
    return ranked[0].name if ranked else None
