"""Keeps a request in one phase: the process that its next step needs is stopped, and counters show that it has come that far.

Where that process has to run for the request to come there at all, it runs in slices: a few milliseconds, a look, a few more. So
nothing that takes longer than a slice is over before it was seen, however slow the look is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from deployment import levels, metrics
from deployment.http import Server
from deployment.ports import Ports
from deployment.supervision import Supervision
from environment.complaint import Complaint
from failures.scenario import Phase
from failures.standstill import Standstill

SECONDS: Final = 20.0
ENGINE_CORE, WORKER, MOVER = "VLLM::EngineCore", "VLLM::Worker", "pegaflow.services.tier.mover"
DECODED: Final = 3
"""So many ids at the client: D has said some itself."""


class Missed(Complaint):
    """The request could not be caught in its phase. Nothing was hurt."""


class Place(NamedTuple):
    """The process, by service and title, whose stop keeps requests there; `slice_seconds`: so long it runs at a time, until
    a request has come there; 0: it stands from the start.

    `legs`: the role of the engine that the router has the request at.
    """

    service: str
    title: str
    legs: str
    slice_seconds: float = 0.0


STEP: Final = 0.005
"""A step of decoding takes about as long; a prefill of the longest prompt twenty times that."""
BRIEF: Final = 0.001
"""A load of few pages is over within two steps that compute nothing, and the engine core pauses for so long between them."""

PLACES: Final = {
    Phase.QUEUED: Place("vllm-p", ENGINE_CORE, "prefill"),
    # A worker that stands still from the start is not asked for a prefill: the step in which the lookup is awaited does not end.
    Phase.PREFILLING: Place("vllm-p", WORKER, "prefill", STEP),
    Phase.FIRST_TOKEN: Place("vllm-d", ENGINE_CORE, "decode"),
    Phase.FETCHING: Place("tier-b", MOVER, "decode"),
    # The same: the step in which the answer to the lookup is taken would not begin.
    Phase.LOADING: Place("vllm-d", WORKER, "decode", BRIEF),
    Phase.DECODING: Place("vllm-d", WORKER, "decode", STEP),
}


class Hold:
    """Keeps requests in `phase` from :meth:`bring` to :meth:`release`; as a context manager releases whatever happens."""

    def __init__(self, phase: Phase, supervision: Supervision, ports: Ports) -> None:
        self._phase, self._ports = phase, ports
        self._place = PLACES[phase]
        self._process = Standstill(find(supervision, self._place))

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def bring(self, start: Callable[[], Sequence[int]]) -> None:
        """Has a request in the phase. `start` returns the list that its ids are put into. Raises Missed if that fails."""
        before = there(self._phase, self._ports)
        self._process.stop()
        ids = start()
        seen = lambda: reached(self._phase, self._ports, before, ids)  # noqa: E731
        if not self._process.until(seen, SECONDS, slice_seconds=self._place.slice_seconds):
            raise Missed("not_reached", f"the request was not {self._phase} within {SECONDS:.0f} s")
        if not legs(self._ports, self._place.legs):
            raise Missed("missed", f"the request was {self._phase} for too short a time")

    def release(self) -> None:
        """The process goes on. Quiet when it has ended meanwhile, and the second time."""
        self._process.go()


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
            return metrics.take(Server(ports.tier_b_health)).total("pegaflow_tier_leases_loading")
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
