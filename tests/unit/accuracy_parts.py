"""Prompts, answers and counters of accuracy's tests."""

from __future__ import annotations

from bench.needles.prompts import Prompt
from deployment.answers import Answer
from deployment.counters import Counters


def answer(*ids: int, text: str = "", first_after: float | None = None) -> Answer:
    return Answer((), ids, text, "length", first_after)


def counters(**values: float) -> Counters:
    return Counters(**{name: values.get(name, 0.0) for name in Counters._fields})


def prompt(ids: int, name: str = "one", secret: str = "") -> Prompt:
    return Prompt(name, f"group {ids}", tuple(range(ids)), secret, 50, 16)
