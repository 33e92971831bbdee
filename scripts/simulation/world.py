"""What every part of one simulation shares."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simulation.agenda import Agenda
from simulation.costs import Costs, Sizes
from simulation.figures import Hardware, Model
from simulation.tally import Tally


class Asker(NamedTuple):
    """Who gets the answer to a request (None: nobody minds it), and how long it is on its way."""

    answer: Callable[[Any], None] | None
    latency: float


@dataclass(slots=True)
class World:
    """`checks`: validate() after every event, for tests."""

    hardware: Hardware
    model: Model
    costs: Costs
    tally: Tally
    random: random.Random
    sizes: Sizes
    checks: bool = False
    agenda: Agenda = field(default_factory=Agenda)

    @property
    def now(self) -> float:
        return self.agenda.now

    def epoch(self) -> int:
        return self.random.getrandbits(63) | 1

    def reply(self, asker: Asker, message: Any, leaves: float) -> None:
        if asker.answer is not None:
            self.agenda.at(leaves + asker.latency, asker.answer, message)

    def handled(self, state: Any, kind: str, event: Any, keys: int) -> Any:
        """The commands of a real `handle`; measured if the tally wants it."""
        if self.tally.kinds is None:
            out = state.handle(event, self.agenda.now)
        else:
            began = time.thread_time()
            out = state.handle(event, self.agenda.now)
            self.tally.kinds.setdefault(kind, []).append((keys, time.thread_time() - began))
        if self.checks:
            state.validate()
        return out
