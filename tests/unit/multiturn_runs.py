"""Runs of scripts/bench/multiturn that were never played."""

from __future__ import annotations

import itertools

from bench.turns.figures import Slo
from bench.turns.heard import Heard
from bench.turns.hits import Growth
from bench.turns.record import Arrival, Kind, Run
from bench.turns.shape import Shape
from deployment.metrics import Snapshot

SHAPE = Shape(sessions=2, turns=3, first=250, growth=90, answer=40)
SLO = Slo(ttft=1.0, tpot=0.1)
NOBODY = Growth({}, {})


def heard(*events: tuple[float, int], session: int = 0, turn: int = 0, late: float = 0.0, error: str = "") -> Heard:
    """`events`: seconds after the request, tokens."""
    ids = tuple(range(sum(count for _, count in events)))
    return Heard(session, turn, 250, late, 0.0, events[-1][0], events, ids, "length", "", error)


def steady(ttft: float, tpot: float, *, session: int = 0, turn: int = 0) -> Heard:
    """Forty tokens."""
    return heard(*((ttft + tpot * n, 1) for n in range(SHAPE.answer)), session=session, turn=turn)


def run(kind: Kind, ttft: float, tpot: float, seconds: float = 10.0) -> Run:
    all_turns = itertools.product(range(SHAPE.sessions), range(SHAPE.turns))
    answers = tuple(steady(ttft, tpot, session=session, turn=turn) for session, turn in all_turns)
    alone = (steady(ttft / 2, tpot / 2),)
    return Run(kind, Arrival.CLOSED, answers, alone, alone, seconds, {"client": 1.0, "engine": 19.0}, NOBODY, {})


def seen(**samples: float) -> Snapshot:
    """`name__label__value`."""
    found = {}
    for text, value in samples.items():
        name, *label = text.split("__")
        found[name, frozenset([(label[0], label[1])] if label else [])] = value
    return Snapshot({(name.replace("vllm_", "vllm:"), labels): value for (name, labels), value in found.items()})
