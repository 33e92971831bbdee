"""The router's metrics."""

from __future__ import annotations

from pegaflow.common import metrics
from pegaflow.services.router.breaker import BreakerState
from pegaflow.services.router.engines import Engine
from pegaflow.services.router.steps import Finish, Plan
from prometheus_client import CollectorRegistry

_BREAKER_VALUES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class RouterMetrics:
    """Counts what flows end with, and how long first tokens take."""

    def __init__(self, into: CollectorRegistry | None = None) -> None:
        self.registry = into if into is not None else metrics.registry()
        self._requests = metrics.counter(
            "pegaflow_router_requests_total",
            "requests that ended, by plan, outcome and HTTP status or error code",
            ("plan", "outcome", "code"),
            into=self.registry,
        )
        self._first_token = metrics.histogram(
            "pegaflow_router_first_token_seconds",
            "from the request to the first byte of a streamed answer",
            ("plan",),
            into=self.registry,
        )
        self._handoff = metrics.histogram(
            "pegaflow_router_handoff_seconds",
            "from the prefill engine's answer to the decode engine's first token, of streamed answers",
            into=self.registry,
        )
        self._inter_token = metrics.histogram(
            "pegaflow_router_inter_token_seconds",
            "between two pieces of a streamed answer, as the client took them",
            ("plan",),
            into=self.registry,
        )
        self._keys = metrics.gauge(
            "pegaflow_router_key_requests",
            "requests that have not ended, by the name of their API key",
            ("key",),
            into=self.registry,
        )
        self._in_flight = metrics.gauge("pegaflow_router_in_flight_requests", "requests that have not ended", into=self.registry)
        self._legs = metrics.gauge(
            "pegaflow_router_engine_legs", "open requests at an engine", ("role", "engine"), into=self.registry
        )
        self._healthy = metrics.gauge(
            "pegaflow_router_engine_healthy", "1 while the engine is healthy", ("role", "engine"), into=self.registry
        )
        self._nodes = metrics.gauge("pegaflow_router_nodes", "nodes that the metaserver says are up", into=self.registry)
        self._retries = metrics.counter(
            "pegaflow_router_flow_retries_total", "flows begun again after a failure", into=self.registry
        )

        self._resumptions = metrics.counter(
            "pegaflow_router_resumptions_total",
            "streams that lost their decode engine and were given to another",
            into=self.registry,
        )

        self._refused_retries = metrics.counter(
            "pegaflow_router_retries_refused_total", "retries that the retry budget did not allow", into=self.registry
        )
        self._breakers = metrics.gauge(
            "pegaflow_router_engine_breaker", "0 closed, 1 half open, 2 open", ("role", "engine"), into=self.registry
        )

        self._located = metrics.counter(
            "pegaflow_router_locates_total",
            "questions where a prompt's pages are: found, nowhere, late or failed",
            ("result",),
            into=self.registry,
        )

    def located(self, result: str) -> None:
        self._located.labels(result).inc()

    def refused_retry(self) -> None:
        self._refused_retries.inc()

    def resumed(self) -> None:
        self._resumptions.inc()

    def nodes(self, count: int) -> None:
        self._nodes.set(count)

    def began(self) -> None:
        self._in_flight.inc()

    def ended(self, finish: Finish) -> None:
        self._in_flight.dec()
        self._requests.labels(finish.plan, finish.outcome, finish.code).inc()

    def first_token(self, plan: Plan, seconds: float) -> None:
        self._first_token.labels(plan).observe(seconds)

    def inter_token(self, plan: Plan, seconds: float) -> None:
        self._inter_token.labels(plan).observe(seconds)

    def key(self, name: str, count: int) -> None:
        """Show how many requests of a key's name are open."""
        self._keys.labels(name).set(count)

    def handoff(self, seconds: float) -> None:
        self._handoff.observe(seconds)

    def retried(self) -> None:
        self._retries.inc()

    def engine(self, engine: Engine, breaker: BreakerState) -> None:
        """Show an engine's load and health as they are now; one that was removed until its last request ended."""
        if engine.removed and not engine.load:
            for gauge in (self._breakers, self._legs, self._healthy):
                gauge.remove(engine.role, engine.name)
            return
        self._breakers.labels(engine.role, engine.name).set(_BREAKER_VALUES[breaker])
        self._legs.labels(engine.role, engine.name).set(engine.load)
        self._healthy.labels(engine.role, engine.name).set(int(bool(engine.healthy)))
