"""A service's life: starting → ready → draining → stopped, with the reasons why it is not ready.

Draining has two ends: a service that was told to end (`drain`) stops, one that was told to rest (`rest`) may be told to go on.

`Lifecycle` does no I/O. `run` gives a service its event loop, turns SIGTERM and SIGINT into a drain, and an
exception into an exit code. `HealthServer` shows the state to supervisors.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import signal
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, Final

import uvloop
from pegaflow.common import faults, logs, metrics
from pegaflow.common.health import HealthServer
from pegaflow.common.loop_watch import LoopWatch
from pegaflow.common.start_error import EX_CONFIG, EX_TEMPFAIL, StartError
from pegaflow.common.version import package_version
from prometheus_client import Gauge

__all__ = ["EX_CONFIG", "EX_OK", "EX_SOFTWARE", "EX_TEMPFAIL", "HealthServer", "Lifecycle", "StartError", "State", "run"]

EX_OK: Final = 0
EX_SOFTWARE: Final = 70

log = logs.get(__name__)


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


_NEXT: Final = {
    State.STARTING: {State.READY, State.DRAINING, State.STOPPED},
    State.READY: {State.DRAINING, State.STOPPED},
    State.DRAINING: {State.READY, State.STOPPED},
    State.STOPPED: set[State](),
}


class Lifecycle:
    """State and reasons of one process. Owned by its event loop; no call blocks; looking is for every thread.

    A service is ready when it has said so *and* no reason stands against it: reasons come and go (a lost
    peer) without changing the state.
    """

    def __init__(self, service: str) -> None:
        self.service = service
        self._state = State.STARTING
        self._reasons: dict[str, str] = {}
        self._leaving = asyncio.Event()
        self._rests = False
        self.watch = LoopWatch()

    @property
    def state(self) -> State:
        return self._state

    @property
    def ready(self) -> bool:
        return self._state is State.READY and not self._reasons

    def reasons(self) -> list[dict[str, str]]:
        """Why the service is not ready, as JSON-able ``{"code", "text"}``; empty when it is."""
        listed = [{"code": code, "text": text} for code, text in list(self._reasons.items())]
        if self.watch.stuck:
            listed.insert(0, {"code": "loop_stuck", "text": f"nothing has moved for {self.watch.stalled():.1f} s"})
        if self._state is not State.READY:
            listed.insert(0, {"code": self._state.value, "text": f"the service is {self._state.value}"})
        return listed

    def show(self) -> None:
        """Makes this the service that the process's metrics speak of."""
        _ready().set_function(lambda: float(self.ready))
        _info().labels(self.service, package_version()).set(1)

    def set_reason(self, code: str, text: str) -> None:
        """Not ready until :meth:`clear_reason` of the same code; a second call replaces the text."""
        self._reasons[code] = text

    def clear_reason(self, code: str) -> None:
        """No error when there is no such reason."""
        self._reasons.pop(code, None)

    def set_ready(self) -> None:
        """starting → ready, or draining where it was told to rest before; nothing when it is to end already."""
        if self._state is State.STARTING:
            self._move(State.READY)
            if self._rests:
                self._move(State.DRAINING)

    def drain(self, why: str = "asked") -> None:
        """Stop taking new work, finish what runs, end. Idempotent."""
        if self._leaving.is_set():
            return
        if self._state is not State.DRAINING:
            self._move(State.DRAINING)
        self._leaving.set()
        log.info("draining", why=why)

    def rest(self, rests: bool) -> None:
        """An operator drains this service, and it does not end; False: it takes work again. Idempotent; too late once it ends."""
        self._rests = rests
        if self._leaving.is_set() or self._state is State.STARTING:
            return
        wanted = State.DRAINING if rests else State.READY
        if self._state is not wanted:
            self._move(wanted)

    async def wait_drain(self) -> None:
        """Returns when the service is to end."""
        await self._leaving.wait()

    def set_stopped(self) -> None:
        """Idempotent; also ends :meth:`wait_drain`."""
        if self._state is not State.STOPPED:
            self._move(State.STOPPED)
            self._leaving.set()

    def _move(self, to: State) -> None:
        if to not in _NEXT[self._state]:
            raise AssertionError(f"lifecycle cannot go from {self._state} to {to}")
        self._state = to


@functools.cache
def _ready() -> Gauge:
    return metrics.gauge("pegaflow_process_ready", "1 while /ready says so", into=metrics.process())


@functools.cache
def _info() -> Gauge:
    name, text = "pegaflow_process_info", "1; its labels say which service this is, and its version"
    return metrics.gauge(name, text, ("service", "version"), into=metrics.process())


def collect_little_and_often() -> None:
    """Settings of the garbage collector for a process with millions of long-lived objects. Once everything is imported."""
    # PERF: such objects have no cycles, so a full collection would stop the process for tenths of a second and find nothing: it
    # comes once in a billion objects. The young ones are looked at twice before they count as old, few at a time: with twenty
    # times as many in the second look that alone took 200 ms while a pool filled. What is imported by now is left out of all.
    gc.freeze()
    gc.set_threshold(20_000, 2, 16_000)


def run(main: Callable[[asyncio.AbstractEventLoop], Coroutine[Any, Any, None]], lifecycle: Lifecycle) -> int:
    """Run a service on uvloop until `main` returns; `main` waits for ``lifecycle.wait_drain()`` itself.

    SIGTERM and SIGINT begin the drain. Returns the exit code: 0; that of a StartError, 75 or 78; 70 for any other
    exception, which is logged with its traceback.
    """
    if faults.armed():
        log.warning("faults_armed", variable=faults.VARIABLE, text="for tests: this process may stop, fail or die on purpose")
    collect_little_and_often()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lifecycle.drain, number.name)
        lifecycle.watch.start(loop)
        lifecycle.show()
        try:
            runner.run(main(loop))
        except StartError as error:
            log.error("cannot_start", code=error.code, text=error.text)
            return error.exit_code
        except Exception:
            log.exception("crashed")
            return EX_SOFTWARE
        finally:
            lifecycle.watch.stop()
            lifecycle.set_stopped()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
    return EX_OK
