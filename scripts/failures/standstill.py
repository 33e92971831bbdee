"""A process that stands still, or runs for a few milliseconds at a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from deployment.supervision import wait_for

POLL_SECONDS: Final = 0.01
"""Between two looks. In it what the last slice has done gets from the engine to its tier, or to the client."""
SLICE_SECONDS: Final = 0.005
"""A step of decoding takes about as long; a prefill of the longest prompt twenty times that."""


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

    def until(self, condition: Callable[[], bool], seconds: float, *, sliced: bool) -> bool:
        """Polls while it stands; `sliced`: it runs a little between two looks. True: it stands and `condition` holds.

        Raises ProcessLookupError when it has ended.
        """

        def holds() -> bool:
            if condition():
                return True
            if sliced:
                self.go()
                time.sleep(SLICE_SECONDS)
                self.stop()
            return False

        return wait_for(holds, seconds, poll_seconds=POLL_SECONDS)
