"""Two tiers, a metaserver, an engine at each tier, with faults armed from outside: what happens to them, and what must hold."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import leftovers
from cluster import Cluster, Process, dump, until
from fault_control import FaultControl, state
from stopwatch import Stopwatch

PAGES = 5
WAIT_S = 0.6
PAGE_GRANULES = 3
DISK = ("--disk-size", "16MiB", "--evict-high", "0.02", "--evict-low", "0.01")
"""Tier a keeps 13 to 27 pages in memory; its disk has four segments of 85."""
SPILL = 90
CALM_S = 3.0


class EngineGone(Exception):
    """The engine's process died before it answered."""


class EngineProcess:
    """`engine_process.py` at one node."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        script = Path(__file__).with_name("engine_process.py")
        self.node = node
        self._command = [sys.executable, str(script), f"engine-{node}", cluster.endpoint(node), str(cluster.runtime(node))]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps({"do": do, **arguments}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except (BrokenPipeError, ValueError):
            line = ""
        if not line:
            raise EngineGone(self.node)
        answer: dict[str, Any] = json.loads(line)
        assert not answer.get("wrong"), f"wrong bytes: {answer}"
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.reap()

    def leave(self) -> None:
        """Says goodbye and ends."""
        self.ask("close")
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.reap()

    def reap(self) -> None:
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Story:
    """A context manager. `suffer`: an act with a fault in it, then everything in service again and nothing left over."""

    def __init__(self, folder: Path) -> None:
        self._topics = itertools.count(1)
        self.in_order = False
        self.steps: list[dict[str, Any]] = []
        self.control = FaultControl(folder).__enter__()
        self.cluster = Cluster(folder, own={"a": ["--disk-dir", str(folder / "disk"), *DISK]})
        self.engines = {node: EngineProcess(self.cluster, node) for node in "ab"}

    def __enter__(self) -> Story:
        try:
            self.cluster.wait_ready()
            self.settle()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.control.__exit__(kind, error, trace)
        for engine in self.engines.values():
            engine.kill()
        self.cluster.__exit__(kind, error, trace)

    # --- faults ------------------------------------------------------------------------------------------------------

    def suffer(self, fault: str, act: Callable[[], None], beside: str = "") -> None:
        """An act with a fault in it, and everything in order again."""
        error = self.control.suffer(fault, act, beside, {engine.process.pid for engine in self.engines.values()})
        if error is not None and not isinstance(error, EngineGone):
            raise error
        self.settle(fault)

    def _processes(self) -> list[Process | EngineProcess]:
        return [*self.cluster.tiers.values(), self.cluster.metaserver, *self.engines.values()]

    # --- acts --------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Saved at a, read at b over NIXL, read again at both. Under a fault pages may be missing, never wrong."""
        self._turn()

    def _turn(self) -> bool:
        topic = f"turn {next(self._topics)}"
        a, b = self.engines["a"], self.engines["b"]
        self.steps = [a.ask("save", topic=topic, count=PAGES)]
        if self.steps[0]["outcome"] != "written":
            return False
        self.steps += [engine.ask("load", topic=topic, count=PAGES, wait=WAIT_S) for engine in (b, a, b)]
        return [step["right"] for step in self.steps[1:]] == [PAGES] * 3

    def fetch(self) -> None:
        """Only the way from a to b."""
        topic = f"turn {next(self._topics)}"
        self.engines["a"].ask("save", topic=topic, count=PAGES)
        self.engines["b"].ask("load", topic=topic, count=PAGES, wait=4.0)

    def abandon(self) -> None:
        self.engines["a"].ask("save", topic=f"turn {next(self._topics)}", count=PAGES, broken=True)

    def cancel(self) -> None:
        self.engines["a"].ask("cancel", topic=f"turn {next(self._topics)}")

    def spill(self) -> None:
        """More than tier a keeps in memory: more than a segment of it goes to disk."""
        self.engines["a"].ask("save", topic=f"turn {next(self._topics)}", count=SPILL)
        self._calm()

    def recall(self) -> None:
        """Saved, pushed out to disk, read again."""
        topic = f"turn {next(self._topics)}"
        self.engines["a"].ask("save", topic=topic, count=PAGES)
        self.spill()
        self.engines["a"].ask("load", topic=topic, count=PAGES, wait=4.0)

    def overflow(self) -> None:
        """More than the disk keeps: its oldest segment goes."""
        before = self._left_disk()
        for _ in range(6):
            self.spill()
            if self._left_disk() != before:
                return

    def _left_disk(self) -> int:
        return int(dump(self.cluster.endpoint("a")).get("counts", {}).get("disk_evicted", 0))

    def _calm(self) -> None:
        """Until tier a has written out what it had to; not for ever, because a fault may be in the way."""
        end = time.monotonic() + CALM_S
        while time.monotonic() < end and (tier := dump(self.cluster.endpoint("a"))):
            if not tier["disk"]["writing"] and tier["space"]["used_bytes"] <= 0.02 * tier["pool_bytes"]:
                return
            time.sleep(0.01)

    def restart_with_disk(self) -> None:
        """A life that finds segments of the one before."""
        self.spill()
        self.restart_tier()

    def replace_engine(self) -> None:
        """One goodbye, one attach."""
        self.engines["a"].leave()
        self.engines["a"].start()

    def kill_engine(self) -> None:
        self.engines["a"].kill()
        self.engines["a"].start()

    def restart_tier(self) -> None:
        self.cluster.tiers["a"].kill()
        self.cluster.tiers["a"].start()

    def renew_tier(self) -> None:
        """A life that finds nothing of the one before."""
        self.cluster.tiers["a"].kill()
        shutil.rmtree(self.cluster.pools / "a")
        self.cluster.tiers["a"].start()

    def lose_writer(self) -> None:
        """An engine that outlives its tier and dies before it has attached to the next one."""
        engine = self.engines["a"].process
        engine.send_signal(signal.SIGSTOP)
        self.restart_tier()
        tier = self.cluster.tiers["a"].process
        until(
            "the new life is up, or not",
            lambda: tier.poll() is not None or state(tier.pid) == "T" or dump(self.cluster.endpoint("a")).get("state") == "ready",
        )
        self.kill_engine()

    def drain_tier(self) -> None:
        tier = self.cluster.tiers["a"]
        tier.process.send_signal(signal.SIGTERM)
        until("the tier ends or stands still", lambda: tier.process.poll() is not None or state(tier.process.pid) == "T")

    def restart_metaserver(self) -> None:
        self.cluster.metaserver.kill()
        self.cluster.metaserver.start()

    # --- what must hold ----------------------------------------------------------------------------------------------

    def settle(self, what: str = "") -> None:
        """What has ended is started, as a supervisor would; then full service, and then nothing is held by anybody."""

        watch = Stopwatch(f"full service again: {what}")

        def in_service() -> bool:
            if self._revive():
                watch.restart()
            try:
                return self._turn()
            except EngineGone:
                return False

        try:
            with watch:
                until("full service", in_service, 60)
        except AssertionError as error:
            raise AssertionError(f"{error}; the last turn: {self.steps}") from None
        last: dict[str, Any] = {}

        def clean() -> bool:
            last.clear()
            last.update(self.held())
            return not last

        try:
            until("nothing held", clean, 30)
        except AssertionError:
            raise AssertionError(f"still held: {last}") from None
        self.in_order = True

    def _revive(self) -> bool:
        """Whether somebody had to be started."""
        dead = False
        for process in self._processes():
            if process.process.poll() is not None:
                if isinstance(process, EngineProcess):
                    process.reap()
                process.start()
                dead = True
        return dead

    def held(self) -> dict[str, Any]:
        """Everything that is not as in an idle cluster with one engine per tier; {} if there is nothing."""
        found = leftovers.of_metaserver(self.cluster)
        for node, engine in self.engines.items():
            found |= leftovers.of_tier(self.cluster, node, PAGE_GRANULES)
            found |= {f"engine {node}: {name}": count for name, count in engine.ask("held").items()}
        return found
