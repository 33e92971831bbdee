"""What vLLM carries between the two halves of the connector: its base classes around our plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from pegaflow.connector.work import RankLayout, RankReport, StepWork
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class StepMetadata(KVConnectorMetadata):
    """Scheduler half → ranks, with each step."""

    work: StepWork


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    """Ranks → scheduler half, added up by vLLM."""

    report: RankReport = field(default_factory=RankReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        if isinstance(other, ReportMetadata):
            self.report.add(other.report)
        return self


@dataclass
class LayoutMetadata(KVConnectorHandshakeMetadata):
    """One rank's page layout, for the engine's fingerprint, at start."""

    layout: RankLayout
