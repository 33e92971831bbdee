"""The metaserver's metrics. Gauges are read when Prometheus asks, counters follow the pure state's counts."""

from __future__ import annotations

from collections import Counter
from typing import Final

from pegaflow.common import metrics
from pegaflow.common.bus.clone import SyncReason
from pegaflow.services.metaserver.nodes import NodeState
from pegaflow.services.metaserver.state import MetaserverState
from prometheus_client import CollectorRegistry

OUTCOMES: Final = ("found", "awaited", "unknown", "timeout")
ENDS: Final = ("dead", "bye")


class MetaserverMetrics:
    """Owns its series in `registry`; one instance per registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry
        gauge, counter = metrics.gauge, metrics.counter
        self._keys = gauge("pegaflow_metaserver_keys", "Keys over all tiers, by state", ["state"], into=registry)
        self._nodes = gauge("pegaflow_metaserver_nodes", "Tiers that say hello, by state", ["state"], into=registry)
        self._waiters = gauge("pegaflow_metaserver_waiters", "Locates that wait for a key", into=registry)
        self._locates = counter("pegaflow_metaserver_locates_total", "Locates answered, by outcome", ["outcome"], into=registry)
        self._located = counter("pegaflow_metaserver_located_keys_total", "Keys asked for by locates", into=registry)
        self._syncs = counter("pegaflow_metaserver_resyncs_total", "Snapshots begun, by reason", ["reason"], into=registry)
        self._deltas = counter("pegaflow_metaserver_deltas_total", "Catalogue deltas received", into=registry)
        self._ends = counter("pegaflow_metaserver_nodes_ended_total", "Tiers that left, by reason", ["reason"], into=registry)
        self._malformed = counter("pegaflow_metaserver_malformed_total", "Messages that did not decode", into=registry)
        self._series = {
            "located_keys": self._located,
            "deltas": self._deltas,
            "malformed": self._malformed,
            **{f"locates_{outcome}": self._locates.labels(outcome) for outcome in OUTCOMES},
            **{f"sync_{reason}": self._syncs.labels(str(reason)) for reason in SyncReason},
            **{f"nodes_{reason}": self._ends.labels(reason) for reason in ENDS},
        }
        self._shown: Counter[str] = Counter()

    def render(self, state: MetaserverState, malformed: int, now: float) -> bytes:
        """The text that Prometheus scrapes, as of `now`."""
        nodes = state.nodes.by_name.values()
        self._keys.labels("sealed").set(sum(node.clone.sealed for node in nodes))
        self._keys.labels("pending").set(sum(node.clone.pending for node in nodes))
        states = Counter(node.state(now) for node in nodes)
        for node_state in NodeState:
            self._nodes.labels(str(node_state)).set(states[node_state])
        self._waiters.set(len(state.waiters))
        counts = state.counts | Counter({"malformed": malformed})
        for name, series in self._series.items():
            series.inc(counts[name] - self._shown[name])
            self._shown[name] = counts[name]
        return metrics.render(self._registry)
