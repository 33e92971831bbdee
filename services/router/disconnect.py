"""ASGI wrapper that ends a request's task when its client goes away.

Falcon notices a lost client only when it sends, which for a request that waits for an engine is never. Whoever
owns `receive` hears of it at once; so this wrapper owns it, hands body events on, and cancels the request's task.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CLEANUP = "pegaflow.cleanup"
"""Scope entry: an async function that a responder leaves to be called when the request is over, however it ends."""


class CancelOnDisconnect:
    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        gone = False
        watching: asyncio.Task[None] | None = None

        async def watch() -> None:
            nonlocal gone
            while not gone:
                gone = (await receive())["type"] == "http.disconnect"
            task.cancel()

        async def body() -> Message:
            nonlocal gone, watching
            if watching is not None:
                # It has had its body, and hears of a disconnect by being cancelled.
                never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                return await never
            event = await receive()
            if event["type"] == "http.disconnect":
                gone = True
                raise asyncio.CancelledError
            if not event.get("more_body"):
                # From here on nobody else asks, so nobody else would hear.
                watching = asyncio.create_task(watch())
            return event

        try:
            await self._app(scope, body, send)
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
        finally:
            if watching is not None:
                watching.cancel()
            cleanup = scope.get(CLEANUP)
            if cleanup is not None:
                await cleanup()
            if gone:
                # The cancellation may still be on its way when the app had just returned; it is meant for here.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
