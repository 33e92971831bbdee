"""A thread that runs one event loop, and takes in work from other threads in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import uvloop

log = logging.getLogger(__name__)


class LoopThread:
    """Runs `live()` on a loop of its own; `ended` is called in the thread when that is over, however.

    `loop` may be touched from `live` and from posted calls only.
    """

    def __init__(self, name: str, live: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        self._live, self._ended = live, ended
        self._posted: deque[Callable[[], None]] = deque()
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Returns when `live` has begun: no posted call comes before its first await."""
        self._thread.start()
        self._started.wait()

    def post(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop soon; keeps order. From any thread, never blocks."""
        self._posted.append(call)
        with suppress(RuntimeError):  # the loop has ended: nobody listens any more
            self.loop.call_soon_threadsafe(self._run_posted)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> bool:
        """True: the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    async def _run(self) -> None:
        self._started.set()
        await self._live()

    def _main(self) -> None:
        try:
            self.loop.run_until_complete(self._run())
        except Exception:
            log.exception("pegaflow link ended: this engine goes on without cache")
        finally:
            self._ended()
            self.loop.close()

    def _run_posted(self) -> None:
        while self._posted:
            call = self._posted.popleft()
            try:
                call()
            except Exception:
                log.exception("pegaflow link: a posted call failed")
