"""The router's metrics."""

from __future__ import annotations

from typing import Any

from pegaflow.common import metrics
from pegaflow.services.router.breaker import BreakerState
from pegaflow.services.router.engines import Engine
from pegaflow.services.router.room import Room
from pegaflow.services.router.steps import Finish, Outcome, Plan
from prometheus_client import CollectorRegistry


class _Labelled:
    """PERF: a metric's children by their labels; to find one by `labels` costs more than to count."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Any] = {}

    def of(self, *labels: str) -> Any:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels)
        return child

    def remove(self, *labels: str) -> None:
        """No error where it was never shown."""
        if self._children.pop(labels, None) is not None:
            self._metric.remove(*labels)


_BREAKER_VALUES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}


class RouterMetrics:
    """Counts what flows end with, and how long first tokens take."""

    def __init__(self, into: CollectorRegistry | None = None) -> None:
        self.registry = into if into is not None else metrics.registry()
        self._shown: dict[tuple[str, str], tuple[BreakerState, bool]] = {}
        self._requests = _Labelled(
            metrics.counter(
                "pegaflow_router_requests_total",
                "requests that ended, by plan, outcome and HTTP status or error code",
                ("plan", "outcome", "code"),
                into=self.registry,
            )
        )
        self._first_token = _Labelled(
            metrics.histogram(
                "pegaflow_router_first_token_seconds",
                "from the request to the first byte of a streamed answer",
                ("plan",),
                into=self.registry,
            )
        )
        self._handoff = metrics.histogram(
            "pegaflow_router_handoff_seconds",
            "from the prefill engine's answer to the decode engine's first token, of streamed answers",
            into=self.registry,
        )
        self._inter_token = _Labelled(
            metrics.histogram(
                "pegaflow_router_inter_token_seconds",
                "between two pieces of a streamed answer, as the client took them; tokens that came at once are one piece",
                ("plan",),
                into=self.registry,
            )
        )
        self._keys = _Labelled(
            metrics.gauge(
                "pegaflow_router_key_requests",
                "requests that have not ended, by the name of their API key",
                ("key",),
                into=self.registry,
            )
        )
        self._connections = metrics.gauge("pegaflow_router_connections", "open connections of clients", into=self.registry)
        self._bodies = metrics.gauge(
            "pegaflow_router_body_bytes", "bytes of the bodies of requests that have not ended", into=self.registry
        )
        self._stalled = metrics.counter(
            "pegaflow_router_clients_stalled_total",
            "connections given up because their clients took nothing of an answer",
            into=self.registry,
        )
        self._in_flight = metrics.gauge("pegaflow_router_in_flight_requests", "requests that have not ended", into=self.registry)
        self._legs = _Labelled(
            metrics.gauge("pegaflow_router_engine_legs", "open requests at an engine", ("role", "engine"), into=self.registry)
        )
        self._healthy = _Labelled(
            metrics.gauge(
                "pegaflow_router_engine_healthy", "1 while the engine is healthy", ("role", "engine"), into=self.registry
            )
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
        self._breakers = _Labelled(
            metrics.gauge(
                "pegaflow_router_engine_breaker", "0 closed, 1 half open, 2 open", ("role", "engine"), into=self.registry
            )
        )

        self._located = _Labelled(
            metrics.counter(
                "pegaflow_router_locates_total",
                "questions where a prompt's pages are: found, nowhere, late or failed",
                ("result",),
                into=self.registry,
            )
        )

    def located(self, result: str) -> None:
        self._located.of(result).inc()

    def refused_retry(self) -> None:
        self._refused_retries.inc()

    def resumed(self) -> None:
        self._resumptions.inc()

    def nodes(self, count: int) -> None:
        self._nodes.set(count)

    def began(self) -> None:
        self._in_flight.inc()

    def refused(self, code: str) -> None:
        """A request that was not let in."""
        self._requests.of(Plan.NONE, Outcome.REFUSED, code).inc()

    def rooms(self, connections: Room, bodies: Room) -> None:
        """Show what is taken of them, whenever somebody looks."""
        self._connections.set_function(lambda: connections.taken)
        self._bodies.set_function(lambda: bodies.taken)

    def stalled(self) -> None:
        self._stalled.inc()

    def ended(self, finish: Finish) -> None:
        self._in_flight.dec()
        self._requests.of(finish.plan, finish.outcome, finish.code).inc()

    def first_token(self, plan: Plan, seconds: float) -> None:
        self._first_token.of(plan).observe(seconds)

    def inter_token(self, plan: Plan, seconds: float) -> None:
        self._inter_token.of(plan).observe(seconds)

    def key(self, name: str, count: int) -> None:
        """Show how many requests of a key's name are open."""
        self._keys.of(name).set(count)

    def handoff(self, seconds: float) -> None:
        self._handoff.observe(seconds)

    def retried(self) -> None:
        self._retries.inc()

    def engine(self, engine: Engine, breaker: BreakerState) -> None:
        """Show an engine's load and health as they are now; one that was removed until its last request ended."""
        if engine.removed and not engine.load:
            self._shown.pop((engine.role, engine.name), None)
            for gauge in (self._breakers, self._legs, self._healthy):
                gauge.remove(engine.role, engine.name)
            return
        self._legs.of(engine.role, engine.name).set(engine.load)
        state = breaker, bool(engine.healthy)
        if self._shown.get((engine.role, engine.name)) != state:
            self._shown[engine.role, engine.name] = state
            self._breakers.of(engine.role, engine.name).set(_BREAKER_VALUES[breaker])
            self._healthy.of(engine.role, engine.name).set(int(state[1]))
