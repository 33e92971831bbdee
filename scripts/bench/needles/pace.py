"""How fast this machine is, and so how long a run takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .prompts import Prompt

WAYS: Final = 4
STARTS_SECONDS: Final = 150.0
"""One vLLM alone, then two and the services; on two quiet cores."""
RESTART_SECONDS: Final = 12.0
"""Of tiers, until engines are attached again."""


class Pace(NamedTuple):
    """Seconds: `each` id of a prefill, `each_before` for each pair of an id and one before it, `token`: of a decoded id."""

    each: float
    each_before: float
    token: float

    def prefill(self, ids: int) -> float:
        return self.each * ids + self.each_before * ids * ids / 2

    def rate(self, ids: int) -> float:
        """Ids a second in a prompt of so many."""
        return ids / self.prefill(ids)

    def run(self, prompts: Sequence[Prompt], batches: int) -> float:
        """Seconds for all of it. The plain vLLM and P compute every prompt once; everything else is loaded."""
        prefills = 2 * sum(self.prefill(len(prompt.ids)) for prompt in prompts)
        decoded = (WAYS + 1) * sum(prompt.tokens * self.token for prompt in prompts)
        return STARTS_SECONDS + prefills + decoded + RESTART_SECONDS * (batches + 1)


def pace(short: tuple[int, float], long: tuple[int, float], token: float) -> Pace:
    """From two prefills, (ids, seconds), of different length."""
    (few, soon), (many, late) = short, long
    before = max(0.0, 2 * (late / many - soon / few) / (many - few))
    return Pace(soon / few - before * few / 2, before, token)
