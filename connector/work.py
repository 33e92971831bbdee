"""What the two halves of the connector tell each other, once per step, through vLLM.

scheduler half ── StepWork ──▶ ranks       before the forward pass
scheduler half ◀─ RankReport ── ranks      after it, added up over the ranks
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pegaflow.connector.load_commands import Load
from pegaflow.connector.options import StartRefused
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


class RankLayout(NamedTuple):
    """One rank's page layout. `shard`: which slot of a key it writes; ranks of one shard (MLA) must agree."""

    shard: int
    digest: bytes
    page_bytes: int


@dataclass(slots=True)
class RankReport:
    """`ended`: save → how many ranks ended it. `failed`: request → why its load failed at some rank. `layouts`: in a rank's
    first report only."""

    ended: dict[int, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    layouts: tuple[RankLayout, ...] = ()

    def add(self, other: RankReport) -> None:
        for save, ranks in other.ended.items():
            self.ended[save] = self.ended.get(save, 0) + ranks
        for request_id, code in other.failed.items():
            self.failed.setdefault(request_id, code)
        self.layouts += other.layouts

    def __bool__(self) -> bool:
        return bool(self.ended or self.failed or self.layouts)


def layouts_by_shard(found: Iterable[RankLayout], shards: int) -> list[RankLayout]:
    """One layout per shard. Raises StartRefused where ranks that share a shard (MLA) differ, or one is missing."""
    by_shard: dict[int, RankLayout] = {}
    for layout in found:
        if by_shard.setdefault(layout.shard, layout) != layout:
            raise StartRefused("layouts_differ", f"ranks of shard {layout.shard} have different page layouts")
    if sorted(by_shard) != list(range(shards)):
        raise StartRefused("layouts_missing", f"page layouts of shards {sorted(by_shard)} are known, {shards} are needed")
    return [by_shard[shard] for shard in range(shards)]
