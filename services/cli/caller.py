"""Asks services, one connection to each, and says of a silence whose fault it is: theirs, or that of our key."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pegaflow.common.bus.rpc import RpcClient
from pegaflow.common.wire.codec import Message
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.services.cli.access import said
from pegaflow.services.cli.knock import Knock
from pegaflow.services.cli.target import Target

SILENCE = frozenset({ErrorCode.DEADLINE, ErrorCode.UNREACHABLE})
KNOCK_AT = 0.25
"""After this share of a question's time somebody looks why there is no answer."""


class Caller:
    """Owns the sockets. Use it on its loop, and close it."""

    def __init__(self, at: Target) -> None:
        self._loop = asyncio.get_running_loop()
        self._key = at.ring.public_hex if at.ring is not None else ""
        self.factory = at.factory()
        self._clients: dict[str, RpcClient] = {}
        self._knocks: dict[str, Knock] = {}
        self._waiting: dict[str, set[asyncio.Future[Any]]] = {}
        self._closed = False

    async def ask(self, endpoint: str, message: Message, budget_s: float, epoch: int = 0) -> Any:
        """One question. `epoch`: only this life of the service may answer it; 0: any.

        Raises `PegaflowError`: an endpoint that cannot be used (other processes name them), no answer in time, a refusal. It ends
        early where it is sure that we are not let in.
        """
        if (client := self._clients.get(endpoint)) is None:
            client = self._clients[endpoint] = RpcClient(self.factory, self._loop, endpoint)
        future: asyncio.Future[Any] = self._loop.create_future()
        waiting = self._waiting.setdefault(endpoint, set())
        waiting.add(future)
        timers = [self._loop.call_later(budget_s * KNOCK_AT, self._knock, endpoint, budget_s)]

        def done(reply: Any) -> None:
            at_once = isinstance(reply, RemoteError) and reply.code == ErrorCode.UNREACHABLE and endpoint not in self._knocks
            if at_once and not self._closed:  # libzmq gives a connection up for good where one side only speaks CURVE
                self._knock(endpoint, budget_s)
                timers.append(self._loop.call_later(budget_s * KNOCK_AT, _end, future, reply))
            else:
                _end(future, reply)

        client.send(message, budget_s, done, epoch)
        if endpoint in self._knocks:
            self._look(endpoint)
        try:
            return await future
        except RemoteError as error:
            raise self._explained(endpoint, error) from None
        finally:
            waiting.discard(future)
            for timer in timers:
                timer.cancel()

    def _knock(self, endpoint: str, wait_s: float) -> None:
        if endpoint not in self._knocks:
            look = partial(self._look, endpoint)
            self._knocks[endpoint] = Knock(self.factory, self._loop, endpoint, wait_s, on_change=look)

    def _look(self, endpoint: str) -> None:
        """Ends the questions to which there will be no answer."""
        access = self._knocks[endpoint].proven()
        if access is not None:
            for future in self._waiting[endpoint]:
                _end(future, RemoteError(access, said(access, self._key)))

    def _explained(self, endpoint: str, error: RemoteError) -> RemoteError:
        if error.code == ErrorCode.FORBIDDEN:
            return RemoteError(error.code, f"{error.text}; a listed key of role operator may")
        knock = self._knocks.get(endpoint)
        if knock is None or error.code not in SILENCE:
            return error
        access = knock.verdict()
        return error if access is None else RemoteError(access, said(access, self._key))

    def close(self) -> None:
        self._closed = True
        for knock in self._knocks.values():
            knock.close()
        for client in self._clients.values():
            client.close()
        self.factory.close()


def _end(future: asyncio.Future[Any], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, Exception):
        future.set_exception(reply)
    else:
        future.set_result(reply)
