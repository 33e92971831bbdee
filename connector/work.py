"""What the two halves of the connector tell each other, once per step, through vLLM.

scheduler half ── StepWork ──▶ ranks       before the forward pass
scheduler half ◀─ RankReport ── ranks      after it, added up over the ranks
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pegaflow.connector.load_tracker import Load
from pegaflow.connector.session import IntentRef


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """One save: block i is position `first + i` in the intent's key list. `tail`: the last one is a tail page."""

    save: int
    first: int
    blocks: tuple[int, ...]
    tail: bool


@dataclass(frozen=True, slots=True)
class SaveWork:
    """All saves of one step; they share one intent."""

    ref: IntentRef
    saves: tuple[SaveOrder, ...]


@dataclass(frozen=True, slots=True)
class StepWork:
    """`step` tells two hooks of one step from two steps: loads are started by whichever comes first."""

    step: int
    saves: SaveWork | None = None
    loads: tuple[Load, ...] = ()


@dataclass(slots=True)
class RankReport:
    """`ended`: save → how many ranks ended it. `failed`: request → why its load failed at some rank."""

    ended: dict[int, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, other: RankReport) -> None:
        for save, ranks in other.ended.items():
            self.ended[save] = self.ended.get(save, 0) + ranks
        for request_id, code in other.failed.items():
            self.failed.setdefault(request_id, code)

    def __bool__(self) -> bool:
        return bool(self.ended or self.failed)
