"""What was kept out of a service, for Prometheus and the dump: the same names for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Kept(NamedTuple):
    """`refused`: connections by reason (no_key, unknown_key, role, malformed); `forbidden`: requests."""

    refused: dict[str, int]
    forbidden: int


REASONS = ("unknown_key", "role", "no_key", "malformed")


class DoorCollector(Collector):
    """Reads the counts of one service when asked; the registry keeps it for the life of the process."""

    def __init__(self, service: str, kept: Callable[[], Kept]) -> None:
        self._service, self._kept = service, kept

    def collect(self) -> Iterable[Metric]:
        kept = self._kept()
        refused = CounterMetricFamily(
            f"pegaflow_{self._service}_connections_refused", "connections whose key may not come in", labels=["reason"]
        )
        for reason in REASONS:
            refused.add_metric([reason], kept.refused.get(reason, 0))
        yield refused
        yield CounterMetricFamily(
            f"pegaflow_{self._service}_requests_forbidden", "requests that the sender's key does not allow", value=kept.forbidden
        )
