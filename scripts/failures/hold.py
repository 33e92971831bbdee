"""Keeps a request in one phase: the process that its next step needs is stopped, and counters show that it has come that far."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from deployment import levels, metrics
from deployment.http import Server
from deployment.ports import Ports
from deployment.supervision import Supervision, wait_for
from environment.complaint import Complaint
from failures.scenario import Phase

SECONDS: Final = 20.0
BRIEF_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.002
"""A prefill of the longest prompt takes a tenth of a second."""
ENGINE_CORE, WORKER, MOVER = "VLLM::EngineCore", "VLLM::Worker", "pegaflow.services.tier.mover"
DECODED: Final = 3
"""So many ids at the client: D has said some itself."""


class Place(NamedTuple):
    """The process, by service and title, whose stop keeps requests there: `at_start`, or only once one has come there.

    `legs`: the role of the engine that the router has the request at.
    """

    service: str
    title: str
    legs: str
    at_start: bool = True


PLACES: Final = {
    Phase.QUEUED: Place("vllm-p", ENGINE_CORE, "prefill"),
    # A worker that stands still from the start is not asked for a prefill: the step in which the lookup is awaited does not end.
    Phase.PREFILLING: Place("vllm-p", WORKER, "prefill", at_start=False),
    Phase.FIRST_TOKEN: Place("vllm-d", ENGINE_CORE, "decode"),
    Phase.FETCHING: Place("tier-b", MOVER, "decode"),
    Phase.LOADING: Place("vllm-d", WORKER, "decode"),
    Phase.DECODING: Place("vllm-d", WORKER, "decode", at_start=False),
}


class Hold:
    """Keeps requests in `phase` from :meth:`bring` to :meth:`release`; as a context manager releases whatever happens."""

    def __init__(self, phase: Phase, supervision: Supervision, ports: Ports) -> None:
        self._phase, self._ports = phase, ports
        self._place = PLACES[phase]
        self._pid = find(supervision, self._place)
        self._stopped = False

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def bring(self, start: Callable[[], Sequence[int]]) -> None:
        """Has a request in the phase. `start` returns the list that its ids are put into. Raises Complaint if that fails."""
        if self._place.at_start:
            self._stop()
        before = there(self._phase, self._ports)
        ids = start()
        seconds = SECONDS if self._place.at_start else BRIEF_SECONDS
        if not wait_for(lambda: reached(self._phase, self._ports, before, ids), seconds, poll_seconds=POLL_SECONDS):
            raise Complaint("not_reached", f"the request was not {self._phase} within {seconds:.0f} s")
        if not self._place.at_start:
            self._stop()
        if not legs(self._ports, self._place.legs):
            raise Complaint("missed", f"the request was {self._phase} for too short a time")

    def release(self) -> None:
        """The process goes on. Quiet when it has ended meanwhile, and the second time."""
        if self._stopped:
            self._stopped = False
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)

    def _stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        self._stopped = True


def find(supervision: Supervision, place: Place) -> int:
    """Its process id. Raises LookupError."""
    for pid in levels.family(supervision.process(place.service).pid):
        title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if place.title in title:
            return pid
    raise LookupError(f"{place.service} has no process {place.title}")


def there(phase: Phase, ports: Ports) -> float:
    """The counter that grows when a request gets there. Raises HttpFailure."""
    match phase:
        case Phase.QUEUED:
            return legs(ports, "prefill")
        case Phase.PREFILLING:
            return metrics.take(Server(ports.tier_a_health)).total("pegaflow_tier_pages_pending_now")
        case Phase.FETCHING:
            return metrics.take(Server(ports.tier_b_health)).total("pegaflow_tier_fetches")
        case Phase.LOADING:
            return metrics.take(Server(ports.tier_b_health)).total("pegaflow_tier_leases")
        case Phase.FIRST_TOKEN:
            return legs(ports, "decode")
        case Phase.DECODING:
            return 0.0


def legs(ports: Ports, role: str) -> float:
    """How many requests the router has at engines of this role. Raises HttpFailure."""
    return metrics.take(Server(ports.router)).total("pegaflow_router_engine_legs", role=role)


def reached(phase: Phase, ports: Ports, before: float, ids: Sequence[int]) -> bool:
    if phase is Phase.DECODING:
        return len(ids) >= DECODED
    return there(phase, ports) > before
