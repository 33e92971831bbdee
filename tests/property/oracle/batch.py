"""What one step of the scheduler decides, and what is open until its output comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pegaflow.connector.work import StepWork
from pegaflow.connector.worker import Collected

from oracle.request import Request


@dataclass(slots=True, eq=False)
class Item:
    """A request's part of a batch. `before`: its parts of batches whose rejections were not known yet."""

    request: Request
    life: int
    start: int
    count: int
    drafts: int
    accepted: int
    table: list[int]
    samples: bool
    before: list[Item]

    @property
    def real_start(self) -> int:
        return self.start - sum(item.drafts - item.accepted for item in self.before)


@dataclass(slots=True, eq=False)
class Batch:
    items: list[Item]
    work: StepWork
    collected: list[Collected] | None = None


@dataclass(slots=True)
class Claim:
    """A load that ranks have not all reported: `ranks` are still to."""

    first: int
    blocks: list[int]
    ranks: set[int]
    failed: bool = False


@dataclass(slots=True)
class Draw:
    """What is random about one step. `chunk`: most tokens of one request; `room`: blocks an admission must leave free."""

    chunk: int
    budget: int
    drafts: int
    accepted: int
    room: int


class _Tables:
    """`KVConnectorBlockState`: nothing is told of a request that is not in the step."""

    def __init__(self, items: list[Item], table: Callable[[Request], list[int]]) -> None:
        self._requests = {item.request.request_id: item.request for item in items}
        self._table = table

    def get_block_ids(self, request_id: str) -> tuple[list[int]] | None:
        request = self._requests.get(request_id)
        return None if request is None else (self._table(request),)


def output(items: list[Item], resumed: set[str], fresh: set[str], preempted: set[str], v2: bool) -> Any:
    """`SchedulerOutput`, as far as a connector reads it. The V2 runner is told of resumed requests as of new ones."""
    new = [SimpleNamespace(req_id=request_id) for request_id in sorted(fresh | resumed if v2 else fresh)]
    own = {item.request.request_id for item in items}
    return SimpleNamespace(
        scheduled_new_reqs=new,
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=sorted(own - {request.req_id for request in new}),
            resumed_req_ids=set() if v2 else set(resumed),
        ),
        num_scheduled_tokens={item.request.request_id: item.count for item in items},
        total_num_scheduled_tokens=sum(item.count for item in items),
        preempted_req_ids=preempted,
        kv_connector_block_state=_Tables(items, lambda request: request.table),
    )
