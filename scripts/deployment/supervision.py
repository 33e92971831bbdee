"""Starts, asks, hurts and stops the processes of one deployment, through its own supervisord."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from xmlrpc.client import Fault, ServerProxy

from supervisor.xmlrpc import SupervisorTransport

from deployment.plan import Plan
from environment.checkout import CONFIGS
from environment.complaint import Complaint

STOP_SECONDS: Final = 90.0
"""Above the sum of what a deployment's services take to drain one after the other."""
GONE_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.1

SERVICES: Final = ("metaserver", "tier-a", "tier-b", "vllm-p", "vllm-d", "router")
WATCH: Final = "watch"
"""Restarts what does not live. Not among the services: who stops processes on purpose does not want it."""
GROUPS: Final = {"tier-a": "node-a", "vllm-p": "node-a", "tier-b": "node-b", "vllm-d": "node-b"}


class Process(NamedTuple):
    """What supervisord knows of a service; `pid` is 0 when it does not run."""

    name: str
    state: str
    pid: int
    error: str


class Supervision:
    """Owns the supervisord of `plan` and all processes under it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, services: Sequence[str] = SERVICES) -> None:
        """Starts supervisord and `services`, without waiting for these. Raises Complaint when supervisord does not come up."""
        log = (self._plan.run / "supervisord.out").open("wb")
        with log:
            self._child = child = subprocess.Popen(
                [self._plan.bin / "supervisord", "-c", CONFIGS / "supervisor" / "supervisord.conf"],
                env=self._plan.environment(), cwd=self._plan.run, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # outlives a demo that was asked to keep it, and its terminal's Ctrl-C
            )  # fmt: skip
        self._plan.save()
        if not wait_for(lambda: self.is_up() or child.poll() is not None, 20) or child.poll() is not None:
            said = (self._plan.run / "supervisord.out").read_text(errors="replace").strip()
            raise Complaint("no_supervisord", f"supervisord did not start: {said}")
        for name in services:
            self.start_one(name)

    def is_up(self) -> bool:
        try:
            return bool(self._call("getState")["statename"] == "RUNNING")
        except (OSError, Fault):
            return False

    def process(self, name: str) -> Process:
        """Raises Complaint for a name that supervisord does not know, and OSError when there is no supervisord."""
        try:
            info = cast(dict[str, Any], self._call("getProcessInfo", full(name)))
        except Fault as fault:
            raise Complaint("unknown_service", f"{name}: {fault.faultString}") from None
        return Process(name, info["statename"], info["pid"], info["spawnerr"])

    def start_one(self, name: str) -> None:
        """Returns at once; readiness is asked elsewhere."""
        self._call("startProcess", full(name), False)

    def stop_one(self, name: str) -> None:
        """SIGTERM and, after the service's stopwaitsecs, SIGKILL; returns when it is gone."""
        self._call("stopProcess", full(name), True)

    def kill(self, name: str, *, family: bool = False) -> None:
        """SIGKILL to the service's own process; with `family` to its children as well (supervisord gave it a process group).

        Returns when it is gone; supervisord starts it again by itself.
        """
        process = self.process(name)
        if not process.pid:
            raise Complaint("not_running", f"{name} is {process.state}")
        (os.killpg if family else os.kill)(process.pid, signal.SIGKILL)
        wait_for(lambda: self.process(name).pid != process.pid, GONE_SECONDS)

    def forget_pool(self, node: str) -> None:
        """Takes a tier's files away; who maps them goes on with them, but its next life starts empty."""
        for path in (self._plan.pool / node).glob("*-*"):
            path.unlink()

    def log(self, name: str) -> Path:
        return self._plan.logs / f"{name}.log"

    def stop(self) -> None:
        """Stops everything and removes its temporary folders; quiet when nothing runs. Raises Complaint when something stays."""
        pidfile = self._plan.run / "supervisord.pid"
        pid = int(pidfile.read_text()) if pidfile.exists() and self.is_up() else 0
        if pid:
            with contextlib.suppress(Fault):  # already shutting down
                self._call("shutdown")
            if not wait_for(lambda: not self._runs(pid), STOP_SECONDS):
                raise Complaint("not_stopped", f"supervisord (pid {pid}) did not end within {STOP_SECONDS:.0f} s")
        for folder in (self._plan.runtime, self._plan.pool):
            shutil.rmtree(folder, ignore_errors=True)
        (self._plan.run / "deployment.json").unlink(missing_ok=True)

    def _runs(self, pid: int) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def _call(self, method: str, *arguments: object) -> Any:
        """One XML-RPC call over supervisord's socket. Raises OSError, Fault."""
        transport = SupervisorTransport(None, None, serverurl=f"unix://{self._plan.supervisor_socket}")
        try:
            return getattr(ServerProxy("http://127.0.0.1", transport=transport).supervisor, method)(*arguments)
        finally:
            transport.close()


def full(name: str) -> str:
    """As supervisord calls a program: with its group."""
    return f"{GROUPS[name]}:{name}" if name in GROUPS else name


def wait_for(condition: Callable[[], bool], seconds: float, *, poll_seconds: float = POLL_SECONDS) -> bool:
    """Polls until `condition` holds (True) or `seconds` are over (False)."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_seconds)
    return True
