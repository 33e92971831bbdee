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
        # One body event at a time, so that an upload is read no faster than it is used.
        inbox: asyncio.Queue[Message] = asyncio.Queue(1)
        gone = False

        async def pump() -> None:
            nonlocal gone
            while True:
                event = await receive()
                if event["type"] == "http.disconnect":
                    gone = True
                    task.cancel()
                    return
                await inbox.put(event)

        pumping = asyncio.create_task(pump())
        try:
            await self._app(scope, inbox.get, send)
        except asyncio.CancelledError:
            if not gone:
                raise
            task.uncancel()
        finally:
            pumping.cancel()
            cleanup = scope.get(CLEANUP)
            if cleanup is not None:
                await cleanup()
            if gone:
                # The cancellation may still be on its way when the app had just returned; it is meant for here.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
