"""What the tests of real sockets share: a loop with a bound on each wait, and inboxes to wait at instead of sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.lifecycle import StartError
from pegaflow.common.wire.errors import ErrorCode, LocalError

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long a test waits for what must come; no test waits for this to pass."""


class Inbox(Generic[T]):
    """Collects; `take` returns the first that fits and drops what came before it."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._changed = asyncio.Event()

    def put(self, item: T) -> None:
        self.items.append(item)
        self._changed.set()

    async def take(self, fits: Callable[[T], bool] = lambda _: True) -> T:
        while True:
            for i, item in enumerate(self.items):
                if fits(item):
                    del self.items[: i + 1]
                    return item
            self._changed.clear()
            await self._changed.wait()


async def bound_again(make: Callable[[], T]) -> T:
    """Makes something that binds where this process has just stopped listening: ZeroMQ closes in a thread of its own."""
    while True:
        try:
            return make()
        except (LocalError, StartError) as error:
            if error.code != ErrorCode.PORT_IN_USE:
                raise
            await asyncio.sleep(0.002)


def run(test: Callable[[SocketFactory, asyncio.AbstractEventLoop], Coroutine[Any, Any, None]]) -> None:
    """Runs a test on a loop of its own with a factory of its own; an exception that no one handled fails it."""

    async def bounded() -> None:
        loop = asyncio.get_running_loop()
        unhandled: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        factory = SocketFactory()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await test(factory, loop)
        finally:
            factory.close()
        assert not unhandled, unhandled

    asyncio.run(bounded())
