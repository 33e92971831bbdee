"""Prometheus metrics: one registry of the service and one of its process, one naming rule.

Names are ``pegaflow_<service>_<what>_<unit>``; the unit of a counter is ``total``, durations are ``seconds``,
sizes ``bytes``. Tests pass a registry of their own so that two instances in one process do not collide.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
LATENCY_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)

_NAME: Final = re.compile(r"pegaflow_[a-z][a-z0-9]*(_[a-z0-9]+)+")


@functools.cache
def registry() -> CollectorRegistry:
    """What this service counts. Read on its event loop, which changes what stands behind it."""
    return CollectorRegistry(auto_describe=True)


@functools.cache
def process() -> CollectorRegistry:
    """The process itself: CPU, memory, descriptors, its event loop. May be read from any thread, also when the loop is stuck."""
    made = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=made)
    return made


def counter(name: str, text: str, labels: Sequence[str] = (), *, into: CollectorRegistry | None = None) -> Counter:
    """Raises ValueError unless the name fits the rule and ends in ``_total``."""
    _check(name, ("_total",))
    return Counter(name, text, labels, registry=into if into is not None else registry())


def gauge(name: str, text: str, labels: Sequence[str] = (), *, into: CollectorRegistry | None = None) -> Gauge:
    _check(name, ())
    return Gauge(name, text, labels, registry=into if into is not None else registry())


def histogram(
    name: str,
    text: str,
    labels: Sequence[str] = (),
    *,
    buckets: Sequence[float] = LATENCY_BUCKETS,
    into: CollectorRegistry | None = None,
) -> Histogram:
    """Raises ValueError unless the name fits the rule and ends in its unit."""
    _check(name, ("_seconds", "_bytes", "_pages", "_tokens", "_messages"))
    return Histogram(name, text, labels, registry=into if into is not None else registry(), buckets=buckets)


def render(source: CollectorRegistry | None = None) -> bytes:
    """The text that Prometheus scrapes, of :data:`CONTENT_TYPE`."""
    return generate_latest(source if source is not None else registry())


def _check(name: str, endings: tuple[str, ...]) -> None:
    if not _NAME.fullmatch(name) or (endings and not name.endswith(endings)):
        wanted = " or ".join(endings) or "its unit"
        raise ValueError(f"metric name {name!r} must be pegaflow_<service>_<what> and end in {wanted}")
