"""The processes of one configuration: two mixed vLLMs, or P and D with tiers, metaserver and router."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from bench.engines.processes import cpu, since
from deployment import metrics, ports
from deployment import plan as planning
from deployment.http import Server
from deployment.leftovers import held
from deployment.readiness import wait_all
from deployment.supervision import SERVICES, Supervision, wait_for
from environment.progress import say, step

from .hits import Seen  # so that tests, to which this is another package, find it too
from .record import Kind

REFERENCE: Final = "reference"
"""The configuration's name for the same engine without connector."""
FIRST: Final = ("metaserver", "tier-a", "tier-b")
SETTLE_SECONDS: Final = 10.0


class Part(NamedTuple):
    """What one supervisord has under it."""

    supervision: Supervision
    ports: ports.Ports
    services: tuple[str, ...]


class Stand:
    """A context manager: everything is started at its beginning and gone at its end, so that nothing is warm by accident.

    `options`: of the plan (model, engine flags, sizes). Every engine has the same; mixed ones leave out the connector.
    `uncounted`: requests that the engines had not counted in time.
    """

    def __init__(self, kind: Kind, folder: Path, options: Mapping[str, Any]) -> None:
        self.kind = kind
        self.uncounted: list[str] = []
        self._parts: list[Part] = []
        taken: list[ports.Ports] = []
        for number, services in enumerate([(REFERENCE,)] * 2 if kind.mixed else [SERVICES], start=1):
            chosen = ports.from_system(*taken)
            taken.append(chosen)
            plan = planning.make(folder / f"{kind}-{number}", chosen, **options)
            self._parts.append(Part(Supervision(plan), chosen, services))
        say(f"logs of {kind}: {folder}/{kind}-*/log")

    def __enter__(self) -> Self:
        try:
            with step(f"start {self.kind}"):
                for part in self._parts:
                    # Before the engines: while these import, nothing else on two cores is ready in time.
                    first = [name for name in part.services if name in FIRST]
                    part.supervision.start(first)
                    wait_all(part.supervision, first, part.ports)
                    for name in part.services:
                        if name not in FIRST:
                            part.supervision.start_one(name)
                for part in self._parts:
                    wait_all(part.supervision, part.services, part.ports)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with step(f"stop {self.kind}"):
            self._stop()

    def _stop(self) -> None:
        stop_all(part.supervision for part in self._parts)

    @property
    def urls(self) -> list[str]:
        """Where clients ask: the router, or both engines."""
        if self.kind.mixed:
            return [Server(part.ports.reference).url() for part in self._parts]
        return [Server(self._parts[0].ports.router).url()]

    def seen(self) -> Seen:
        """The counters of everybody, by name. Raises HttpFailure."""
        if self.kind.mixed:
            return {f"mixed {n}": metrics.take(Server(part.ports.reference)) for n, part in enumerate(self._parts, start=1)}
        at = self._parts[0].ports
        listen = {"P": at.p, "D": at.d, "tier a": at.tier_a_health, "tier b": at.tier_b_health, "router": at.router}
        return {name: metrics.take(Server(port)) for name, port in listen.items()}

    def settled(self, before: Seen, requests: int) -> Seen:
        """The counters once every engine has counted `requests` in all since `before`: they run behind the answers."""

        def counted() -> bool:
            name, now = "vllm:request_success_total", self.seen()
            grown = {who: now[who].total(name) - before[who].total(name) for who in now}
            if self.kind.mixed:
                return sum(grown.values()) >= requests
            positions = "pegaflow_prompt_positions_computed_total"
            last = now["D"].total(positions) - before["D"].total(positions)
            return min(grown["P"], grown["D"], last) >= requests

        if not wait_for(counted, SETTLE_SECONDS, poll_seconds=0.5):
            self.uncounted.append(f"the engines have not counted {requests} requests within {SETTLE_SECONDS:.0f} s")
            say(f"  {self.uncounted[-1]}; hits by level are too low")
        return self.seen()

    def cpu(self) -> Cpu:
        """CPU time used so far."""
        return {name: cpu([pid] if pid else []) for name, pid in self.pids().items()}

    def pids(self) -> dict[str, int]:
        """Of the services by name; 0 of one that does not run."""
        return {
            f"mixed {n}" if service == REFERENCE else service: part.supervision.process(service).pid
            for n, part in enumerate(self._parts, start=1)
            for service in part.services
        }

    def left(self) -> dict[str, float]:
        """What tiers and router still hold once all requests are over; {} is right."""
        if self.kind.mixed:
            return {}
        at = self._parts[0].ports
        return {} if wait_for(lambda: not held(at), SETTLE_SECONDS, poll_seconds=0.5) else held(at)


class Stops(Protocol):
    def stop(self) -> None: ...


def stop_all(running: Iterable[Stops]) -> None:
    """Each of them, whatever becomes of the others; then raises what one of them did."""
    with ExitStack() as ends:
        for each in running:
            ends.callback(each.stop)


Cpu = dict[str, dict[Any, float]]


def used(before: Cpu, after: Cpu) -> dict[str, float]:
    """Seconds by process family."""
    return {name: sum(since(before[name], after[name]).values()) for name in after}
