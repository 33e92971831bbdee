"""`pegaflow-watch`: run by supervisord as an event listener of TICK_5; `pegaflow-watch --probe URL` looks once, for others."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pegaflow.common import clock, logs, metrics
from pegaflow.common.config import load
from pegaflow.common.health import HealthServer
from pegaflow.common.lifecycle import EX_OK, Lifecycle
from pegaflow.common.loop_watch import STUCK_S, LoopWatch
from pegaflow.common.start_error import StartError
from pegaflow.services.watch import probe
from pegaflow.services.watch.config import WatchConfig
from pegaflow.services.watch.state import Held, Restart, Watch
from pegaflow.services.watch.supervisord import RUNNING, Events, NoAnswer, Supervisord

EX_UNHEALTHY = 1
EX_USAGE = 64
PROBE_SECONDS = 2.0
EVENT_SECONDS = 30.0 - STUCK_S
"""From one TICK_5 to the next: longer than a look at what does not answer takes. 30 s after one, /health is 503."""
URL = "SUPERVISOR_SERVER_URL"

log = logs.get(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Until supervisord ends. Exit codes: 0; 64 without a supervisord; 75 (port in use); 78 (configuration).

    With --probe: 0 alive, 1 not.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) == 2 and words[0] == "--probe":
        return _probe_once(words[1])
    config = load(
        WatchConfig,
        section="watch",
        prog="pegaflow-watch",
        description="Restarts programs of supervisord that run and do not live. --probe URL: one look at a /health, 0 or 1.",
        argv=words,
    ).value
    logs.setup("watch", config.node, config.log_level)
    if URL not in os.environ:
        log.error("cannot_start", code="no_supervisord", text=f"{URL} is not set: this is an event listener of supervisord")
        return EX_USAGE
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # meant for the services beside it; nothing here changes without a restart
    lifecycle = Lifecycle("watch")
    health = HealthServer(lifecycle, config.health_host, config.health_port)
    try:
        health.start()
    except StartError as error:
        log.error("cannot_start", code=error.code, text=error.text)
        return error.exit_code
    try:
        lifecycle.show()
        lifecycle.set_ready()
        with ThreadPoolExecutor(len(config.programs)) as pool:
            watcher = Watcher(config, Supervisord(os.environ[URL]), pool)
            follow(Events(sys.stdin.buffer, sys.stdout.buffer), watcher, lifecycle.watch)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        health.close()
    return EX_OK


def follow(events: Iterable[str], watcher: Watcher, watch: LoopWatch) -> None:
    """Looks at each TICK, to the end of the events. `watch` knows when none comes, or a look does not end."""
    watch.expect(EVENT_SECONDS)
    for event in events:
        if event.startswith("TICK"):
            watch.expect(EVENT_SECONDS)
            watcher.look()


def _probe_once(url: str) -> int:
    failure = probe.ask(url, PROBE_SECONDS)
    if failure:
        print(f"{url}: {failure}", file=sys.stderr)
    return EX_UNHEALTHY if failure else EX_OK


class Watcher:
    """Asks supervisord who runs, asks those whether they live, and kills whom the pure `Watch` says."""

    def __init__(self, config: WatchConfig, supervisord: Supervisord, pool: ThreadPoolExecutor) -> None:
        self._programs, self._timeout = config.programs, config.timeout
        self._supervisord, self._pool = supervisord, pool
        self._watch = Watch(self._programs, config.rules)
        self._missing: set[str] = set()
        checks = metrics.counter("pegaflow_watch_checks_total", "looks at programs that run, by result", ("program", "result"))
        restarts = metrics.counter("pegaflow_watch_restarts_total", "programs killed because they did not live", ("program",))
        self._alive = {name: checks.labels(name, "alive") for name in self._programs}
        self._dead = {name: checks.labels(name, "failed") for name in self._programs}
        self._killed = {name: restarts.labels(name) for name in self._programs}

    def look(self) -> None:
        """One round, of at most the probe's timeout."""
        try:
            found = {process.name: process for process in self._supervisord.processes()}
        except NoAnswer as error:
            log.warning("supervisord_unreachable", text=str(error))
            return
        self._warn_of(self._programs.keys() - found.keys())
        now = clock.now()
        running: dict[str, int] = {}
        for name in self._programs:
            process = found.get(name)
            pid = process.pid if process is not None and process.state == RUNNING else 0
            self._watch.seen(name, pid, now)
            if pid:
                running[name] = pid
        answers = self._pool.map(lambda name: probe.ask(self._programs[name], self._timeout), running)
        for (name, pid), failure in zip(running.items(), answers, strict=True):
            (self._dead if failure else self._alive)[name].inc()
            match self._watch.answered(name, pid, failure, clock.now()):
                case Restart(_, _, failures, restarts, pause_s):
                    log.error("restarting", program=name, pid=pid, why=failures, restarts=restarts, pause_s=pause_s)
                    self._killed[name].inc()
                    _kill(name, pid)
                case Held(_, _, failures, left_s):
                    log.error("restart_held", program=name, pid=pid, why=failures, left_s=round(left_s, 1))

    def _warn_of(self, missing: set[str]) -> None:
        for name in sorted(missing - self._missing):
            log.warning("unknown_program", program=name, text="supervisord has no program of this name")
        self._missing = missing


def _kill(name: str, pid: int) -> None:
    """The whole family: supervisord gives each program a process group. It starts it again, because that is no expected exit."""
    try:
        with contextlib.suppress(ProcessLookupError):  # ended by itself meanwhile
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
    except PermissionError as error:  # of another user: the others are still to be watched
        log.error("cannot_kill", program=name, pid=pid, text=str(error))


if __name__ == "__main__":
    sys.exit(main())
