"""Lines that say what is being done and how long it took, or has taken so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

REMIND_SECONDS: Final = 15.0
"""A silent minute looks like a hang; a line a second buries the log."""


def say(text: str) -> None:
    """One line on stdout, at once (the reader may be a pipe)."""
    print(text, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announce `what`, repeat it while it lasts, say its duration at the end; an exception passes through."""
    started = time.monotonic()
    over = threading.Event()

    def remind() -> None:
        while not over.wait(REMIND_SECONDS):
            say(f"  … {what}: {time.monotonic() - started:.0f} s so far")

    reminder = threading.Thread(target=remind, name="progress", daemon=True)
    say(f"- {what}")
    reminder.start()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        over.set()
        reminder.join()
        say(f"  {outcome} in {time.monotonic() - started:.1f} s: {what}")
