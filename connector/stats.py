"""The connector's counters on vLLM's `/metrics`.

vLLM collects what each half counted in a step, adds it up over the ranks, and hands it to the process that serves the
metrics (`kv_connector/v1/metrics.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS: dict[str, tuple[str, str]] = {
    "prompt_positions_computed": ("", "Prompt positions computed by this engine"),
    "prompt_last_positions_computed": ("", "Those of them that are a prompt's last one, which vLLM always computes"),
    "pages_saved": ("", "Pages written into the tier's pool, counted per rank"),
    "pages_loaded": ("", "Pages copied from the tier's pool, counted per rank"),
    "tails_saved": ("", "Tail pages among the saved ones"),
    "tails_loaded": ("", "Tail pages among the loaded ones"),
    "saves": ("outcome", "Saves (one request's part of one intent), per rank"),
    "loads": ("outcome", "Loads that every rank has reported"),
    "lookups": ("outcome", "Lookups"),
    "lookup_pages": ("source", "Pages found by lookups"),
    "requests_refused": ("reason", "Requests failed by strict decode"),
    "hook_errors": ("hook", "Errors caught in connector hooks"),
}
"""Name without `pegaflow_` and `_total` → label (none: empty), help."""


@dataclass
class PegaStats(KVConnectorStats):
    """`data`: growth by `name` or `name|label`."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class PegaPromMetrics(KVConnectorPromMetrics):
    """One counter per name, with vLLM's own labels and at most one of ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counters = {
            name: self._counter_cls(
                name=f"pegaflow_{name}",
                documentation=text,
                labelnames=[*self._labelnames, label] if label else self._labelnames,
            )
            for name, (label, text) in COUNTERS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for entry, value in transfer_stats_data.items():
            name, _, label = entry.partition("|")
            counter: Counter | None = self._counters.get(name)
            if counter is not None:
                counter.labels(*labels, *([label] if label else [])).inc(value)
