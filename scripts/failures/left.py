"""What a scenario has left behind: what requests hold, and processes, sessions, files and descriptors beyond those of before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from deployment import levels, metrics
from deployment.http import Server
from deployment.leftovers import engines_hold, files, held
from deployment.plan import Plan
from deployment.supervision import Supervision, wait_for

SECONDS: Final = 15.0
POLL_SECONDS: Final = 0.25
DESCRIPTORS_SLACK: Final = 24
"""Connections that are kept for a while, of each client one to P and one to D; what is lost each time exceeds it soon."""
THREADS_SLACK: Final = 8
"""Thread pools make their threads when there is work for one more."""


class Left:
    """Compares with what there was when it was made. `step`: has both engines make one, so that they say what they hold now."""

    def __init__(self, plan: Plan, supervision: Supervision, step: Callable[[], None]) -> None:
        self._plan, self._supervision, self._step = plan, supervision, step
        self._levels, self._files, self._sessions = levels.take(supervision), files(plan), self._attached()
        self._processes = processes(plan)

    def __call__(self) -> dict[str, Any]:
        """By name; {} once there is nothing, at the latest after a while. Raises HttpFailure."""
        return {} if wait_for(lambda: not self._now(), SECONDS, poll_seconds=POLL_SECONDS) else self._now()

    def _now(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(held(self._plan.ports))
        if engines_hold(self._plan.ports):
            self._step()
            found |= engines_hold(self._plan.ports)
        now = levels.take(self._supervision)
        for name, then in self._levels.items():
            there = now.get(name)
            if there is None or there.processes != then.processes:
                found[f"processes of {name}"] = f"{there.processes if there else 0} instead of {then.processes}"
                continue
            if there.files > then.files + DESCRIPTORS_SLACK:
                found[f"descriptors of {name}"] = f"{there.files} instead of {then.files}"
            if there.threads > then.threads + THREADS_SLACK:
                found[f"threads of {name}"] = f"{there.threads} instead of {then.threads}"
        if (strays := processes(self._plan)) != self._processes:
            found["processes, orphans too"] = f"{strays} instead of {self._processes}"
        for name, count in (files(self._plan) - self._files).items():
            found[f"files {name}"] = f"{count} more"
        if (sessions := self._attached()) != self._sessions:
            found["sessions"] = f"{sessions} instead of {self._sessions}"
        return found

    def _attached(self) -> tuple[float, float]:
        """Engines at tier a and at tier b."""
        a, b = (metrics.take(Server(port)) for port in (self._plan.ports.tier_a_health, self._plan.ports.tier_b_health))
        return a.total("pegaflow_tier_sessions"), b.total("pegaflow_tier_sessions")


def processes(plan: Plan) -> int:
    """How many have this deployment's environment, whoever their parent is by now. Those that have ended do not count."""
    mark = f"DEPLOY_RUNTIME={plan.runtime}".encode()
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                count += mark in (entry / "environ").read_bytes().split(b"\0")
    return count
