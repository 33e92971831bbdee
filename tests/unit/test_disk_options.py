"""The disk level's options, and its metrics."""

from __future__ import annotations

from typing import Any

import pytest
from disk_script import CAPACITY, DiskScript
from pegaflow.services.tier import events
from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.exposition import TierCollector
from prometheus_client import CollectorRegistry


def test_the_metrics_of_the_disk() -> None:
    script = DiskScript()
    script.fill(range(20))
    script.lookup(sorted(script.on_disk())[:1])
    read = script.pending.pop()
    script.feed(events.DiskReadEnded(read.job, ["io_error"]))
    registry = CollectorRegistry()
    registry.register(TierCollector(script.tier))
    assert registry.get_sample_value("pegaflow_tier_disk_failures_total", {"code": "io_error"}) == 1
    assert registry.get_sample_value("pegaflow_tier_disk_pages") == len(script.on_disk())
    assert registry.get_sample_value("pegaflow_tier_disk_pages_written_total") == len(script.on_disk()) + 1
    assert registry.get_sample_value("pegaflow_tier_disk_capacity_bytes") == CAPACITY


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"disk_dir": "d"}, "go together"),
        ({"disk_size": 1 << 30}, "go together"),
        ({"disk_dir": "d", "disk_size": 1 << 30}, "evict_high"),
        ({"disk_dir": "d", "disk_size": 1 << 20, "evict_high": 0.9, "evict_low": 0.8}, "below 16 MiB"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        TierConfig(node="a", **options)
