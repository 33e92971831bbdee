"""Waiting until services answer, with words for what is waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from deployment.http import Server
from deployment.ports import Ports
from deployment.supervision import Supervision, wait_for
from environment.complaint import Complaint
from environment.progress import step

ENGINE_SECONDS: Final = 600.0
"""Three vLLMs importing at once on two idle cores take about two minutes; the machine may have other work."""
SERVICE_SECONDS: Final = 30.0
HOPELESS_POLLS: Final = 20
LOG_LINES: Final = 15

HOPELESS: Final = frozenset({"FATAL", "EXITED", "UNKNOWN"})
"""supervisord's states in which it will not try again by itself."""


class Probe(NamedTuple):
    """`name` is supervisord's; ready when a GET of `path` is answered with 200."""

    name: str
    server: Server
    path: str
    seconds: float


def probes(ports: Ports) -> dict[str, Probe]:
    """How each service of a deployment is asked whether it is ready."""
    rows = [
        Probe("metaserver", Server(ports.metaserver_health), "/ready", SERVICE_SECONDS),
        Probe("tier-a", Server(ports.tier_a_health), "/ready", SERVICE_SECONDS),
        Probe("tier-b", Server(ports.tier_b_health), "/ready", SERVICE_SECONDS),
        Probe("vllm-p", Server(ports.p), "/health", ENGINE_SECONDS),
        Probe("vllm-d", Server(ports.d), "/health", ENGINE_SECONDS),
        Probe("reference", Server(ports.reference), "/health", ENGINE_SECONDS),
        Probe("router", Server(ports.router), "/ready", SERVICE_SECONDS),
    ]
    return {probe.name: probe for probe in rows}


def wait_ready(supervision: Supervision, probe: Probe) -> None:
    """Raises Complaint, with the end of the service's log, when it gives up or takes too long."""
    last = (0, "never asked")
    hopeless = 0

    def answered_or_hopeless() -> bool:
        nonlocal last, hopeless
        last = probe.server.status(probe.path)
        # A service is EXITED for a moment before supervisord starts it again.
        hopeless = hopeless + 1 if supervision.process(probe.name).state in HOPELESS else 0
        return last[0] == 200 or hopeless >= HOPELESS_POLLS

    with step(f"wait for {probe.name} ({probe.server.url(probe.path)})"):
        in_time = wait_for(answered_or_hopeless, probe.seconds)
        if last[0] == 200:
            return
        state = supervision.process(probe.name).state
        why = f"not ready within {probe.seconds:.0f} s" if in_time is False else f"gave up ({state})"
        tail = "\n    ".join(_tail(supervision, probe.name))
        raise Complaint("not_ready", f"{probe.name} {why}; last answer: {last[1]!r}; the end of its log:\n    {tail}")


def wait_all(supervision: Supervision, names: Sequence[str], ports: Ports) -> None:
    """Raises Complaint for the first that does not get ready."""
    known = probes(ports)
    for name in names:
        wait_ready(supervision, known[name])


def wait_until(what: str, condition: Callable[[], bool], seconds: float) -> None:
    """Raises Complaint when `condition` does not come true in time."""
    with step(f"wait until {what}"):
        if not wait_for(condition, seconds):
            raise Complaint("not_reached", f"waited {seconds:.0f} s in vain until {what}")


def _tail(supervision: Supervision, name: str) -> list[str]:
    path = supervision.log(name)
    return path.read_text(errors="replace").splitlines()[-LOG_LINES:] if path.exists() else ["(no log)"]
