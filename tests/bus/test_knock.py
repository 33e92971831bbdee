"""Why somebody does not let us in, over real sockets, of which each is right but for one thing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
from keys import Keys
from loopback import run
from pegaflow.common import clock
from pegaflow.common.bus.endpoint import without_key
from pegaflow.common.bus.events import EventPublisher
from pegaflow.common.bus.keyring import Keyring, new_pair
from pegaflow.common.bus.roles import Role
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages import operate
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.cli import caller
from pegaflow.services.cli.access import Access
from pegaflow.services.cli.caller import Caller
from pegaflow.services.cli.knock import Knock
from pegaflow.services.cli.target import Target
from pegaflow.services.reach import mechanism

WAIT_S = 20.0
ANY = "tcp://127.0.0.1:*"
Loop = asyncio.AbstractEventLoop


def well(request: Request) -> None:
    request.reply(Done())


def not_at_all(request: Request) -> None:
    """As a service whose loop has lost the question."""


class Both:
    """A tier under keys, and one without."""

    def __init__(self, folder: Path, loop: Loop, answers: Callable[[Request], None]) -> None:
        self.keys = Keys(folder)
        self.operator, self.engine = self.keys.client(Role.OPERATOR), self.keys.client(Role.ENGINE)
        self.unlisted = self.keys.client(Role.OPERATOR, listed=False)
        self.factories = [SocketFactory(self.keys.server(Role.TIER)), SocketFactory()]
        self.servers = [RpcServer(made, loop, ANY, 7, answers, clock.now) for made in self.factories]
        self.keyed, self.plain = (server.endpoint for server in self.servers)
        self.publisher = EventPublisher(self.factories[0], loop, ANY, "a", 7)

    def close(self) -> None:
        self.publisher.close()
        for server in self.servers:
            server.close()
        for factory in self.factories:
            factory.close()


@asynccontextmanager
async def both(folder: Path, loop: Loop, answers: Callable[[Request], None] = well) -> AsyncIterator[Both]:
    made = Both(folder, loop, answers)
    try:
        yield made
    finally:
        made.close()


async def verdict(ring: Keyring | None, loop: Loop, endpoint: str, kind: int = zmq.DEALER) -> Access | None:
    """Of a knock that has come to one, or was let in."""
    factory = SocketFactory(ring)
    knock = Knock(factory, loop, endpoint, WAIT_S, kind)
    while knock.verdict() is None and not knock.let_in:
        await asyncio.sleep(0.002)
    found = knock.verdict()
    knock.close()
    knock.close()
    factory.close()
    return found


def test_each_door(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: Loop) -> None:
        async with both(tmp_path, loop) as tiers:
            other = f"{without_key(tiers.keyed)}#{new_pair()[0]}"
            events = tiers.publisher.endpoint
            assert await verdict(tiers.operator, loop, tiers.keyed) is None
            assert await verdict(None, loop, tiers.plain) is None
            assert await verdict(tiers.unlisted, loop, tiers.keyed) is Access.KEY_REFUSED
            assert await verdict(tiers.operator, loop, other) is Access.WRONG_SERVER_KEY
            assert await verdict(None, loop, without_key(tiers.keyed)) is Access.KEY_NEEDED
            assert await verdict(tiers.operator, loop, f"{tiers.plain}#{new_pair()[0]}") is Access.NO_KEYS
            assert await verdict(tiers.operator, loop, events, zmq.SUB) is None
            assert await verdict(tiers.engine, loop, events, zmq.SUB) is Access.KEY_REFUSED
            assert await verdict(tiers.engine, loop, tiers.keyed) is None, "it may ask, and is told what it may not"

    run(scenario)


def test_the_mechanism_is_that_of_the_greeting_whatever_ours_would_be(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: Loop) -> None:
        async with both(tmp_path, loop) as tiers:
            with socket.create_server(("127.0.0.1", 0)) as silent:
                at = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
                found = await asyncio.gather(*(mechanism(one, WAIT_S) for one in (tiers.keyed, tiers.plain)), mechanism(at, 0.05))
            assert found == ["CURVE", "NULL", ""]

    run(scenario)


async def asked(ring: Keyring | None, endpoint: str, budget_s: float) -> RemoteError:
    made = Caller(Target((), (endpoint,), budget_s, ring))
    try:
        with pytest.raises(RemoteError) as told:
            await made.ask(endpoint, operate.Status(), budget_s)
        return told.value
    finally:
        made.close()


def test_a_question_ends_early_where_there_will_be_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else this would run into the patience of `run`."""
    monkeypatch.setattr(caller, "KNOCK_AT", 1e-5)
    for_ever = 3600.0

    async def scenario(_: SocketFactory, loop: Loop) -> None:
        async with both(tmp_path, loop) as tiers:
            for ring, endpoint, access in (
                (tiers.operator, f"{without_key(tiers.keyed)}#{new_pair()[0]}", Access.WRONG_SERVER_KEY),
                (None, without_key(tiers.keyed), Access.KEY_NEEDED),
                (tiers.operator, f"{tiers.plain}#{new_pair()[0]}", Access.NO_KEYS),
            ):
                made = Caller(Target((), (endpoint,), for_ever, ring))
                for _again in range(2):
                    with pytest.raises(RemoteError, match=access):
                        await made.ask(endpoint, operate.Status(), for_ever)
                made.close()

    run(scenario)


def test_a_service_that_hangs_is_not_one_that_refuses(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: Loop) -> None:
        async with both(tmp_path, loop, answers=not_at_all) as tiers:
            told = await asked(tiers.operator, tiers.keyed, 1.0)
            assert told.code == ErrorCode.DEADLINE
            told = await asked(tiers.engine, tiers.keyed, WAIT_S)
            assert told.code == ErrorCode.FORBIDDEN and "operator" in told.text

    run(scenario)


def test_a_refusal_is_told_with_the_key_that_was_refused(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: Loop) -> None:
        async with both(tmp_path, loop) as tiers:
            told = await asked(tiers.unlisted, tiers.keyed, 3.0)
            assert told.code == Access.KEY_REFUSED and tiers.unlisted.public_hex[:8] in told.text
            assert tiers.factories[0].refused["unknown_key"] > 0

    run(scenario)
