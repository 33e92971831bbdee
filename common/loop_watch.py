"""Is a process's event loop still turning? A beat on the loop, and everybody else's look at how old it is.

The beat is also what systemd's watchdog is fed with (`WatchdogSec=`): a loop that does not turn feeds nobody. A process without
such a loop says itself by when it will be heard of again (`expect`).
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Final

from pegaflow.common import metrics
from prometheus_client import Gauge, Histogram

BEAT_S: Final = 0.25
STUCK_S: Final = 5.0
"""A loop that has not turned for so long is stuck: whole seconds are more than the longest honest step, on a busy machine too."""
FRAMES: Final = 6
LAG_BUCKETS: Final = (0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class LoopWatch:
    """`start` on the loop that is to be watched, or `expect` again and again; the others may be called from any thread."""

    def __init__(self, environ: Mapping[str, str] = os.environ, stuck_s: float = STUCK_S) -> None:
        self.stuck_s = stuck_s
        self._due = 0.0  # when the next beat should come; 0: nobody is watched
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._notify = environ.get("NOTIFY_SOCKET", "")

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._thread = loop, threading.get_ident()
        self._due = time.monotonic()
        _stalled().set_function(self.stalled)
        self._tell("READY=1")
        self._beat()

    def expect(self, within_s: float) -> None:
        """Without an event loop: the caller's thread will be back here by then, or counts as stalled from then on."""
        self._thread = threading.get_ident()
        self._due = time.monotonic() + within_s
        _stalled().set_function(self.stalled)

    def stop(self) -> None:
        """Idempotent; on the loop."""
        self._due, self._loop = 0.0, None
        if self._timer is not None:
            self._timer.cancel()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """What is watched."""
        return self._loop

    def stalled(self) -> float:
        """Seconds by which the next beat is late; 0 where nothing is watched."""
        return max(0.0, time.monotonic() - self._due) if self._due else 0.0

    @property
    def stuck(self) -> bool:
        return self.stalled() > self.stuck_s

    def where(self) -> list[str]:
        """What the loop's thread does just now, innermost call first."""
        frame = sys._current_frames().get(self._thread)
        calls = traceback.extract_stack(frame)[-FRAMES:] if frame is not None else []
        return [f"{call.filename}:{call.lineno} {call.name}" for call in reversed(calls)]

    def _beat(self) -> None:
        assert self._loop is not None
        now = time.monotonic()
        _lag().observe(max(0.0, now - self._due))
        self._due = now + BEAT_S
        self._tell("WATCHDOG=1")
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    def _tell(self, state: str) -> None:
        """sd_notify(3): a datagram to systemd, if it started us."""
        if not self._notify:
            return
        address = "\0" + self._notify[1:] if self._notify.startswith("@") else self._notify
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            try:
                sock.sendto(state.encode(), address)
            except OSError:
                return  # systemd is being executed anew, or reads slowly: the next beat comes soon


@functools.cache
def _lag() -> Histogram:
    name, text = "pegaflow_process_loop_lag_seconds", "how late the event loop came to a timer, four times a second"
    return metrics.histogram(name, text, buckets=LAG_BUCKETS, into=metrics.process())


@functools.cache
def _stalled() -> Gauge:
    name, text = "pegaflow_process_loop_stalled_seconds", "for how long the event loop has not turned; 0: it does"
    return metrics.gauge(name, text, into=metrics.process())
