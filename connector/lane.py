"""One thread that does one kind of copies, in order."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Lane(Generic[Job]):
    """Hands each job to `handle` in a thread of its own.

    `handle` is expected to catch what it raises, because only it knows what a job owes to others; an error that gets
    out is logged and does not end the lane.
    """

    def __init__(self, name: str, handle: Callable[[Job], None], log: logging.Logger) -> None:
        self._handle = handle
        self._log = log
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def close(self) -> None:
        """Ends after the jobs that are queued, and waits for that."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._handle(job)
            except Exception:
                self._log.exception("copy_lane_error: in %s", self._thread.name)
