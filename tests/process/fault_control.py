"""Faults in processes that a test has started: armed while they run, and what is to be done once one has happened.

They stand in one file that every process reads; whoever reaches the point first is the victim, and its mark names its pid.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from cluster import until
from pegaflow.common import faults
from pegaflow.common.faults import Action

REACHED_S = 60.0
AGAIN_S = 6.0
"""Some acts only begin what reaches the point: a process that starts on a busy machine."""


class FaultControl:
    """A context manager. Processes that are started within it read their faults from its file."""

    def __init__(self, folder: Path) -> None:
        self._file, self.marks = folder / "faults", folder / "marks"
        self.environ = {faults.VARIABLE: f"@{self._file}", faults.SEEN_VARIABLE: str(self.marks)}
        self._clients = ThreadPoolExecutor(1)

    def __enter__(self) -> FaultControl:
        self.arm("")
        os.environ.update(self.environ)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in self.environ:
            del os.environ[name]
        self._clients.shutdown()

    def arm(self, text: str) -> None:
        """From now on; marks of before are forgotten."""
        self.marks.unlink(missing_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._file)

    def suffer(
        self,
        fault: str,
        act: Callable[[], None],
        beside: str = "",
        actors: Collection[int] = (),
        then: Callable[[], None] = lambda: None,
    ) -> BaseException | None:
        """Runs `act` with `fault` armed (and `beside`, which helps to reach it), and `then` once it has happened.

        Returns what `act` raised. On a busy machine an act may miss its point (a grant that comes too late is not waited for), so
        it is repeated; fails if the point is not reached at all. A process that was stopped goes on when the act is over, because
        everybody else has to live with its silence; one of `actors`, without whom the act cannot end, at once.
        """
        action = fault.rpartition(":")[2].partition("=")[0]
        self.arm(f"{fault},{beside}")
        end = time.monotonic() + REACHED_S

        def until_reached() -> None:
            again = 0.0
            while fault not in faults.seen(self.marks) and time.monotonic() < end:
                if time.monotonic() >= again:
                    act()
                    again = time.monotonic() + AGAIN_S
                time.sleep(0.005)

        acting = self._clients.submit(until_reached)
        pid = until(f"{fault} is reached", lambda: faults.seen(self.marks).get(fault), REACHED_S)
        if action == Action.STOP:
            until("it stands still", lambda: state(pid) in "TZ")
            then()
            if pid not in actors:
                until("the act is over", acting.done)
            os.kill(pid, signal.SIGCONT)
        elif action == Action.KILL:
            until("it is dead", lambda: state(pid) == "Z")
        if action != Action.STOP:
            then()
        until("the act is over", acting.done)
        self.arm("")
        return acting.exception()


def state(pid: int) -> str:
    """R, S, D, T (stopped), Z (dead, all of its threads); Z too for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
    found = text[text.rindex(")") + 2]
    return "D" if found == "Z" and threads > 1 else found
