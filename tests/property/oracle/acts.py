"""What can happen, and with which choices. One draw per act: what hypothesis does for each costs more than a step of the models.

A byte decides each choice, so each shrinks towards its first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from oracle.prefixes import SPLITS
from oracle.rank import Fate
from oracle.request import Kind
from oracle.shape import BLOCKS, RANKS, USES

KINDS = [Kind.PLAIN] * 6 + [Kind.SALTED, Kind.ADAPTED, Kind.UNCACHED, Kind.TURNS]
MISHAPS = ("abort", "abort", "evict", "expire", "reset", "reset_running", "restart", "restart", "stop", "wait")
HARMLESS = ("abort", "evict", "expire", "reset", "reset_running", "restart")
"""Mishaps after which nothing may be missing, but for what the tier itself lost."""

STEP = (range(1, 13), range(4), range(4), (0, 0, 3, BLOCKS), range(64))
CHOICES: dict[str, Sequence[Sequence[Any]]] = {
    "step": STEP,
    "smooth_steps": (range(4, 25),),
    "arrive": (range(len(SPLITS)), range(1, 31), range(1, 15), KINDS),
    "land": (),
    "answer": (range(4), (9, 9, 9, 0, 1, 2), ("", "", "overloaded")),
    "load": (range(6), (Fate.DONE, Fate.REPLACED, Fate.RAISES, Fate.REPLACED, Fate.SESSION_OVER, Fate.DONE)),
    "save": (range(6), (Fate.DONE, Fate.DONE, Fate.RAISES, Fate.NO_GRANT, Fate.SESSION_OVER)),
    "preempt": (),
    "mishap": (MISHAPS, range(4)),
}
NAMES = ("step", "step", "step", "smooth_steps", "smooth_steps", "arrive", "arrive", *list(CHOICES)[3:])
"""How often each is tried; mishaps end stories, so they are not most of it. What is not possible is a step instead."""
SHUNNED = ("smooth_steps", "land", "answer", "load", "save", "preempt", "mishap")
"""What an example may do without altogether: that leads to other stories."""


class Act(NamedTuple):
    name: str
    choices: tuple[Any, ...]
    otherwise: tuple[Any, ...]


class Begin(NamedTuple):
    """`pages` of each text have been saved by another engine; with `trouble` < 3 nothing fails."""

    ranks: int
    use: int
    depth: int
    flags: int
    pages: int
    trouble: int
    shunned: frozenset[str]


def acts() -> st.SearchStrategy[Act]:
    return st.binary(min_size=6, max_size=6).map(_act)


def begins() -> st.SearchStrategy[Begin]:
    return st.binary(min_size=8, max_size=8).map(_begin)


def _act(drawn: bytes) -> Act:
    name = NAMES[drawn[0] % len(NAMES)]
    return Act(name, _choose(CHOICES[name], drawn[1:]), _choose(STEP, drawn[1:]))


def _begin(drawn: bytes) -> Begin:
    choices = ((0, 0, 1, *range(len(RANKS))), range(len(USES)), (1, 2, 2, 3), range(32), range(6), range(8))
    without = drawn[6] & drawn[7]
    shunned = frozenset(name for bit, name in enumerate(SHUNNED) if without >> bit & 1)
    return Begin._make((*_choose(choices, drawn), shunned))


def _choose(choices: Sequence[Sequence[Any]], drawn: bytes) -> tuple[Any, ...]:
    return tuple([choice[byte % len(choice)] for choice, byte in zip(choices, drawn, strict=False)])
