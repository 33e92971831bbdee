"""The connector's statistics on vLLM's `/metrics`.

vLLM collects what each half counted in a step, adds it up over the ranks and then over steps, and hands it to the process that
serves the metrics (`kv_connector/v1/metrics.py`). So a gauge has to say whose it is: of one half the latest value counts, and
what operators see is the sum over the halves.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS: dict[str, tuple[str, str]] = {
    "prompt_positions_computed": ("", "Prompt positions computed by this engine"),
    "prompt_last_positions_computed": ("", "Those of them that are a prompt's last one, which vLLM always computes"),
    "pages_saved": ("", "Pages written into the tier's pool, counted per rank"),
    "pages_loaded": ("", "Pages copied from the tier's pool, counted per rank"),
    "bytes_saved": ("", "Bytes of the pages written into the tier's pool"),
    "bytes_loaded": ("", "Bytes of the pages copied from the tier's pool"),
    "tails_saved": ("", "Tail pages among the saved ones"),
    "tails_loaded": ("", "Tail pages among the loaded ones"),
    "saves": ("outcome", "Saves (one request's part of one intent), per rank; not_published: once more in the next step"),
    "loads": ("outcome", "Loads that every rank has reported"),
    "lookups": ("outcome", "Lookups: hit, miss, or why there is no answer"),
    "lookup_pages": ("source", "Pages found by lookups: local, remote (fetched from another node), disk"),
    "pages_missed": ("reason", "Pages asked for by lookups and not found, by the reason that ended the prefix"),
    "requests_refused": ("reason", "Requests failed by strict decode"),
    "requests_left_alone": ("reason", "Requests that were not looked up in full: their hashes or blocks do not fit"),
    "cache_resets": ("", "Resets after which this engine finds nothing that was saved before"),
    "hook_errors": ("hook", "Errors caught in connector hooks"),
}
"""Name without `pegaflow_` and `_total` → label (none: empty), help."""

SECONDS: dict[str, tuple[str, str]] = {
    "save_seconds": ("", "From the intent of a save until every rank has ended it"),
    "save_copy_seconds": ("", "Copying one save's pages into the pool, per rank"),
    "load_seconds": ("", "From the claim of a load until every rank has reported it"),
    "load_copy_seconds": ("", "Copying one load's pages out of the pool, per rank"),
    "lookup_seconds": ("outcome", "From asking the tier until its answer is taken"),
}
"""Histograms: name without `pegaflow_` → label (none: empty), help."""

GAUGES: dict[str, str] = {
    "open_saves": "Saves that still pin blocks of vLLM",
    "open_loads": "Loads that not every rank has reported yet",
    "open_lookups": "Lookups without an answer",
    "open_leases": "Leases that this engine holds",
    "open_grants": "Grants that ranks have not answered in full",
    "tier_attached": "1 while the scheduler half has a session with the tier",
}
"""Name without `pegaflow_` → help. As of the engine's last step."""

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LABELS = {name: label for name, (label, _) in [*COUNTERS.items(), *SECONDS.items()]}


@dataclass
class PegaStats(KVConnectorStats):
    """`data`: `name` or `name|label` → growth (counters), seconds (histograms), value (gauges, where the label is the part)."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """`other` is from another rank, or from later."""
        for entry, value in other.data.items():
            if entry.partition("|")[0] in GAUGES:
                self.data[entry] = value
            elif isinstance(value, list):
                self.data[entry] = [*self.data.get(entry, ()), *value]
            else:
                self.data[entry] = self.data.get(entry, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """For vLLM's log: counts, the median of each histogram, gauges."""
        values: dict[str, int | float] = {}
        for entry, value in self.data.items():
            if isinstance(value, list):
                values[f"{entry} (median of {len(value)})"] = round(statistics.median(value), 6)
            else:
                values[entry] = value
        return values

    def is_empty(self) -> bool:
        return not self.data


class PegaPromMetrics(KVConnectorPromMetrics):
    """One metric per name, with vLLM's own labels and at most one of ours. What has no label of ours is there from the start."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counters = {
            name: self._counter_cls(name=f"pegaflow_{name}", documentation=text, labelnames=self._names(label))
            for name, (label, text) in COUNTERS.items()
        }
        self._seconds = {
            name: self._histogram_cls(
                name=f"pegaflow_{name}", documentation=text, buckets=list(BUCKETS), labelnames=self._names(label)
            )
            for name, (label, text) in SECONDS.items()
        }
        self._gauges = {
            name: self._gauge_cls(
                name=f"pegaflow_{name}", documentation=text, multiprocess_mode="mostrecent", labelnames=self._names("")
            )
            for name, text in GAUGES.items()
        }
        # engine, gauge → part → latest value
        self._latest: dict[tuple[int, str], dict[str, int]] = {}
        for labels in self.per_engine_labelvalues.values():
            for name, metric in [*self._counters.items(), *self._seconds.items(), *self._gauges.items()]:
                if not LABELS.get(name):
                    metric.labels(*labels)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for entry, value in transfer_stats_data.items():
            name, _, label = entry.partition("|")
            own = [*labels, label] if label else labels
            if name in self._gauges:
                latest = self._latest.setdefault((engine_idx, name), {})
                latest[label] = value
                self._gauges[name].labels(*labels).set(sum(latest.values()))
            elif name in self._counters:
                self._counters[name].labels(*own).inc(value)
            elif name in self._seconds:
                histogram = self._seconds[name].labels(*own)
                for seconds in value:
                    histogram.observe(seconds)

    def _names(self, label: str) -> list[str]:
        return [*self._labelnames, label] if label else list(self._labelnames)
