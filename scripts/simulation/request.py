"""One turn on its way through router, prefill and decode engine."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.workload import Session


@dataclass(slots=True, eq=False)
class Request:
    """`prompt` and `output` in tokens; times in seconds, negative until they have come."""

    number: int
    session: Session
    prompt: int
    output: int
    arrived: float
    prefill: str = ""
    decode: str = ""
    computed: int = 0
    answered: float = -1.0
    loaded: float = -1.0

    @property
    def name(self) -> str:
        return f"r{self.number}"
