"""A process that stands still, or runs for a few milliseconds at a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from deployment.supervision import wait_for

POLL_SECONDS: Final = 0.01
"""Between two looks. In it what the last slice has done gets from the engine to its tier, or to the client."""


class Standstill:
    """Of the process `pid`, which somebody else owns and may end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stands = False

    def stop(self) -> None:
        """Raises ProcessLookupError when it has ended."""
        os.kill(self._pid, signal.SIGSTOP)
        self._stands = True

    def go(self) -> None:
        """It goes on. Quiet when it has ended meanwhile, and the second time."""
        if self._stands:
            self._stands = False
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)

    def until(self, condition: Callable[[], bool], seconds: float, *, slice_seconds: float = 0.0) -> bool:
        """Polls while it stands; `slice_seconds`: it runs for so long between two looks. True: it stands and `condition` holds.

        Raises ProcessLookupError when it has ended.
        """

        def holds() -> bool:
            if condition():
                return True
            if slice_seconds:
                self.go()
                time.sleep(slice_seconds)
                self.stop()
            return False

        return wait_for(holds, seconds, poll_seconds=POLL_SECONDS)


def stands(pid: int) -> bool:
    """As the kernel says."""
    status = Path(f"/proc/{pid}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "T"
