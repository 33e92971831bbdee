"""Counters of a service at one moment."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from deployment.http import Server


class Snapshot(NamedTuple):
    """Sample name and labels → value."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def total(self, name: str, **labels: str) -> float:
        """Sum over the samples of `name` that carry `labels`; 0 when there is none yet."""
        wanted = frozenset(labels.items())
        return sum(value for (known, has), value in self.samples.items() if known == name and wanted <= has)

    def has(self, name: str) -> bool:
        return any(known == name for known, _ in self.samples)


def take(server: Server) -> Snapshot:
    """Raises HttpFailure."""
    samples = {}
    for family in text_string_to_metric_families(server.text("/metrics")):
        for sample in family.samples:
            samples[sample.name, frozenset(sample.labels.items())] = sample.value
    return Snapshot(samples)
