"""A tier's questions to replicas of the metaserver: who is asked, and what happens when one fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loopback import Inbox, run
from pegaflow.common import clock
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.errors import ErrorCode, RemoteError
from pegaflow.common.wire.messages.catalogue import Hello, HelloAck, Locate, Located
from pegaflow.common.wire.messages.operate import Ping, Pong
from pegaflow.services.tier.peers import Metaservers, in_turn

Loop = asyncio.AbstractEventLoop
HELLO = Hello("a", 1, "r", "e", "c", "1")


def located(name: str) -> Located:
    return Located(b"\2", 1, u32s([0]), [name], u64s([1]), ["r"])


def test_nodes_begin_with_different_replicas() -> None:
    lines = [in_turn(["x", "y", "z"], f"node-{i}") for i in range(30)]
    assert {tuple(line) for line in lines} == {("x", "y", "z"), ("y", "z", "x"), ("z", "x", "y")}
    assert lines == [in_turn(["x", "y", "z"], f"node-{i}") for i in range(30)], "always the same for a node"
    assert in_turn([], "a") == []


class Replica:
    """Answers hellos and pings while `alive`, and hands locates to the test."""

    def __init__(self, factory: SocketFactory, loop: Loop, name: str, *, known: bool = True) -> None:
        self.name, self.known, self.alive = name, known, True
        self.asked: Inbox[Request] = Inbox()
        self.pings = 0
        self.server = RpcServer(factory, loop, "tcp://127.0.0.1:*", 7, self._take, clock.now)

    def _take(self, request: Request) -> None:
        if not self.alive:
            return
        match request.message:
            case Hello():
                request.reply(HelloAck(self.known))
            case Ping():
                self.pings += 1
                request.reply(Pong("metaserver", self.name, 7, "1", 1))
            case Locate():
                self.asked.put(request)

    async def answer(self) -> Locate:
        request = await self.asked.take()
        request.reply(located(self.name))
        asked: Locate = request.message
        return asked


class World:
    def __init__(self, factory: SocketFactory, loop: Loop, *known: bool) -> None:
        self.loop = loop
        self.replicas = [Replica(factory, loop, f"m{i}", known=is_known) for i, is_known in enumerate(known)]
        self.metaservers = Metaservers(factory, loop, [replica.server.endpoint for replica in self.replicas])

    async def told(self, waiting: int = 0) -> None:
        """A hello has come back from everyone; `waiting` locates have not."""
        self.metaservers.tell(HELLO)
        while self.metaservers.in_flight > waiting:
            await asyncio.sleep(0.002)

    def ask(self, wait_ms: int = 0, budget_s: float = 20.0) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        self.metaservers.ask(Locate("a", [b"k"], wait_ms, False), budget_s, future.set_result)
        return future

    def close(self) -> None:
        self.metaservers.close()
        for replica in self.replicas:
            replica.server.close()


def test_a_silent_replica_costs_a_part_of_the_budget_only() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop, True, True)
        await world.told()
        world.replicas[0].alive = False
        answer = world.ask(wait_ms=10_000)
        asked = await world.replicas[1].answer()
        assert (await answer).nodes == ["m1"]
        assert 0 < asked.wait_ms < 10_000, "the wait goes on, it does not begin anew"
        answer = world.ask()
        await world.replicas[1].answer()
        assert (await answer).nodes == ["m1"], "who failed is not asked first again"
        world.close()

    run(test)


def test_a_replica_that_waits_is_not_given_up() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop, True, True)
        await world.told()
        answer = world.ask(wait_ms=10_000)
        request = await world.replicas[0].asked.take()
        while not world.replicas[0].pings:
            await asyncio.sleep(0.002)
        await world.told(waiting=1)  # so the ping was answered too
        assert not world.replicas[1].asked.items and not answer.done()
        request.reply(located("m0"))
        assert (await answer).nodes == ["m0"]
        world.close()

    run(test)


def test_who_knows_us_is_asked_first() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop, False, True)
        await world.told()
        assert world.metaservers.known
        answer = world.ask()
        await world.replicas[1].answer()
        assert (await answer).nodes == ["m1"]
        world.close()

    run(test)


def test_who_does_not_answer_hellos_any_more_does_not_know_us() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop, True, False)
        assert world.metaservers.counts == (2, 0)
        await world.told()
        assert world.metaservers.counts == (2, 1)
        for replica in world.replicas:
            replica.alive = False
        await world.told()
        assert world.metaservers.counts == (2, 0) and not world.metaservers.known
        world.close()

    run(test)


@pytest.mark.parametrize(("code", "again"), [(ErrorCode.BUSY, True), (ErrorCode.BAD_MESSAGE, False)])
def test_a_refusal_goes_to_the_next_replica_if_it_may_do_better(code: ErrorCode, again: bool) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop, True, True)
        await world.told()
        answer = world.ask()
        (await world.replicas[0].asked.take()).fail(code, "no")
        if again:
            await world.replicas[1].answer()
            assert (await answer).nodes == ["m1"]
        else:
            assert (await answer).code == code
            assert not world.replicas[1].asked.items
        world.close()

    run(test)


def test_when_all_are_silent_the_last_failure_is_the_answer_within_the_budget() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop, True, True)
        for replica in world.replicas:
            replica.alive = False
        failure = await world.ask(budget_s=0.8)
        assert isinstance(failure, RemoteError) and failure.code in (ErrorCode.UNREACHABLE, ErrorCode.DEADLINE)
        world.close()

    run(test)


def test_without_a_metaserver_the_answer_is_unreachable() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        world = World(factory, loop)
        assert (await world.ask()).code == ErrorCode.UNREACHABLE and not world.metaservers and not world.metaservers.known
        world.close()

    run(test)
