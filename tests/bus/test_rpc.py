"""Requests and replies over real sockets: deadlines, epochs, what does not decode, and servers that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest
from loopback import Inbox, bound_again, run
from pegaflow.common import clock
from pegaflow.common.bus import rpc, sockets
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.rpc import Request, RpcClient, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u64s
from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError
from pegaflow.common.wire.messages.catalogue import NodeList, Nodes
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.operate import Error, LogLevel, Ping, Pong

EPOCH = 0xE1
Loop = asyncio.AbstractEventLoop


class PingServer(RpcServer):
    """Answers pings, keeps everything else unanswered in `inbox`."""

    def __init__(self, factory: SocketFactory, loop: Loop, endpoint: str, epoch: int = EPOCH) -> None:
        self.inbox: Inbox[Request] = Inbox()
        super().__init__(factory, loop, endpoint, epoch, self._take, clock.now)

    def _take(self, request: Request) -> None:
        if isinstance(request.message, Ping):
            request.reply(Pong("test", "n", self.epoch, "1", 0))
        else:
            self.inbox.put(request)


async def code_of(request: Any) -> str:
    with pytest.raises((RemoteError, LocalError)) as caught:
        await request
    return caught.value.code


def test_a_request_gets_its_own_reply() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        first = loop.create_task(client.request(LogLevel("a"), 20))
        second = loop.create_task(client.request(LogLevel("b"), 20))
        asked = [await server.inbox.take(), await server.inbox.take()]
        assert [request.message.level for request in asked] == ["a", "b"]
        asked[1].fail(ErrorCode.BUSY, "later")
        asked[0].reply(Done())
        assert await first == Done()
        with pytest.raises(RemoteError, match="later") as caught:
            await second
        assert caught.value.code == ErrorCode.BUSY and caught.value.retryable
        assert client.peer_epoch == EPOCH and client.in_flight == 0
        client.close()
        server.close()

    run(test)


def test_a_deadline_ends_a_request_that_nobody_answers() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        await client.request(Ping(), 20)
        asked = loop.create_task(client.request(LogLevel("x"), 0.5))
        late = await server.inbox.take()
        assert await code_of(asked) == ErrorCode.DEADLINE
        assert client.in_flight == 0
        late.reply(Done())
        assert isinstance(await client.request(Ping(), 20), Pong), "the late answer is nobody's"
        client.close()
        server.close()

    run(test)


def test_a_request_for_another_life_is_refused() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        assert await code_of(client.request(Ping(), 20, epoch=EPOCH + 1)) == ErrorCode.WRONG_EPOCH
        assert isinstance(await client.request(Ping(), 20, epoch=EPOCH), Pong)
        client.close()
        server.close()

    run(test)


def test_what_queued_for_a_dead_server_is_not_delivered_to_its_next_life(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        endpoint = f"ipc://{tmp_path}/s"
        client = RpcClient(factory, loop, endpoint)
        assert await code_of(client.request(LogLevel("stale"), 0.05)) == ErrorCode.DEADLINE
        server = PingServer(factory, loop, endpoint)
        fresh = loop.create_task(client.request(LogLevel("fresh"), 20))
        first = await server.inbox.take()
        assert first.message.level == "fresh"
        first.reply(Done())
        await fresh
        assert not server.inbox.items
        client.close()
        server.close()

    run(test)


def test_a_server_that_restarts_answers_the_same_client(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        endpoint = f"ipc://{tmp_path}/s"
        server = PingServer(factory, loop, endpoint)
        client = RpcClient(factory, loop, endpoint)
        assert (await client.request(Ping(), 20)).epoch == EPOCH
        server.close()
        server = await bound_again(lambda: PingServer(factory, loop, endpoint, EPOCH + 1))
        # A request that went into the dying connection is lost: ZeroMQ had taken it already. The next one counts.
        for _ in range(40):
            with contextlib.suppress(RemoteError):
                assert (await client.request(Ping(), 0.5)).epoch == EPOCH + 1
                break
        else:
            raise AssertionError("the new life never answered")
        client.close()
        server.close()

    run(test)


def test_when_the_peer_is_silent_all_that_went_the_same_way_ends(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        client = RpcClient(factory, loop, f"ipc://{tmp_path}/nobody")
        long = loop.create_task(client.request(LogLevel("long"), 3600))
        assert await code_of(client.request(Ping(), 0.05)) == ErrorCode.DEADLINE
        assert await code_of(long) == ErrorCode.UNREACHABLE
        assert client.in_flight == 0
        client.close()

    run(test)


def test_a_wait_outlives_another_requests_deadline_while_the_peer_speaks() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        long = loop.create_task(client.request(LogLevel("long"), 3600))
        waiting = await server.inbox.take()
        short = loop.create_task(client.request(LogLevel("short"), 3600))
        await server.inbox.take()
        await client.request(Ping(), 20)  # a sign of life after `short` was sent
        client._expire(max(client._pending))  # its deadline passes
        assert await code_of(short) == ErrorCode.DEADLINE
        waiting.reply(Done())
        assert await long == Done()
        client.close()
        server.close()

    run(test)


def test_closing_ends_what_is_pending() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        pending = loop.create_task(client.request(LogLevel("x"), 3600))
        await server.inbox.take()
        client.close()
        assert await code_of(pending) == ErrorCode.UNREACHABLE
        server.close()

    run(test)


def test_a_request_is_answered_once() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        pending = loop.create_task(client.request(LogLevel("x"), 20))
        request = await server.inbox.take()
        request.reply(Done())
        with pytest.raises(ValueError, match="answered twice"):
            request.fail(ErrorCode.BUSY, "no")
        await pending
        client.close()
        server.close()

    run(test)


def test_a_handler_that_raises_is_answered_and_reported() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        def broken(request: Request) -> None:
            raise KeyError("bug")

        reported: list[Any] = []
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        server = RpcServer(factory, loop, "tcp://127.0.0.1:*", EPOCH, broken, clock.now)
        client = RpcClient(factory, loop, server.endpoint)
        assert await code_of(client.request(Ping(), 20)) == ErrorCode.INTERNAL
        assert await code_of(client.request(Ping(), 20)) == ErrorCode.INTERNAL, "the socket lives on"
        assert [type(error) for error in reported] == [KeyError, KeyError]
        client.close()
        server.close()

    run(test)


class Raw:
    """A peer that says what it likes."""

    def __init__(self, factory: SocketFactory, loop: Loop, endpoint: str) -> None:
        self.inbox: Inbox[list[bytes]] = Inbox()
        self.port = Port(factory.dealer(endpoint), loop, self.inbox.put)

    async def ask(self, frames: list[bytes]) -> tuple[int, Any]:
        self.port.send(frames)
        envelope = open_envelope(await self.inbox.take(), ReplyHeader)
        return envelope.header.correlation, envelope.message()


def test_an_unknown_kind_is_answered_unsupported() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        raw = Raw(factory, loop, server.endpoint)
        frames = encode(Ping(), RequestHeader(7, 1000, 0))
        frames[1] = frames[1][:1] + b"from_the_future"
        correlation, error = await raw.ask(frames)
        assert correlation == 7 and isinstance(error, Error) and error.code == ErrorCode.UNSUPPORTED and not error.retryable
        assert server.malformed == 0
        raw.port.close()
        server.close()

    run(test)


def test_frames_that_do_not_decode_are_answered_and_do_no_harm() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        raw = Raw(factory, loop, server.endpoint)
        good = encode(Ping(), RequestHeader(7, 1000, 0))
        cases = [
            (good[:3], 0, ErrorCode.BAD_ENVELOPE),
            ([b""], 0, ErrorCode.BAD_ENVELOPE),
            ([b"", b"", b"", b""], 0, ErrorCode.BAD_ENVELOPE),
            ([good[0], b"\x63ping", *good[2:]], 0, ErrorCode.PROTOCOL_MISMATCH),
            ([*good[:2], good[2][:-1], good[3]], 0, ErrorCode.BAD_ENVELOPE),
            ([*good[:2], b"\x93\xff\x01\x01", good[3]], 0, ErrorCode.BAD_ENVELOPE),
            ([*good[:3], b"\x93\x01"], 7, ErrorCode.BAD_MESSAGE),
            ([*good[:3], b""], 7, ErrorCode.BAD_MESSAGE),
        ]
        for frames, correlation, code in cases:
            got, error = await raw.ask(frames)
            assert (got, error.code) == (correlation, code), frames
        assert server.malformed == len(cases)
        assert (await raw.ask(good))[0] == 7
        raw.port.close()
        server.close()

    run(test)


def test_an_oversized_message_costs_its_sender_the_connection_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        with monkeypatch.context() as limited:
            limited.setattr(sockets, "MAX_MESSAGE_BYTES", 1000)
            server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        raw, client = Raw(factory, loop, server.endpoint), RpcClient(factory, loop, server.endpoint)
        await client.request(Ping(), 20)
        raw.port.send(encode(LogLevel("x" * 2000), RequestHeader(1, 1000, 0)))
        assert isinstance(await client.request(Ping(), 20), Pong)
        correlation, pong = await raw.ask(encode(Ping(), RequestHeader(2, 1000, 0)))
        assert correlation == 2 and isinstance(pong, Pong), "after a reconnect"
        assert not server.inbox.items
        raw.port.close()
        client.close()
        server.close()

    run(test)


def test_too_large_to_send_is_found_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_MESSAGE_BYTES", 1000)

    async def test(factory: SocketFactory, loop: Loop) -> None:
        server = PingServer(factory, loop, "tcp://127.0.0.1:*")
        client = RpcClient(factory, loop, server.endpoint)
        assert await code_of(client.request(LogLevel("x" * 2000), 20)) == ErrorCode.TOO_LARGE
        pending = loop.create_task(client.request(Nodes(), 20))
        request = await server.inbox.take()
        request.reply(NodeList(["x" * 2000], u64s([1]), ["up"], ["r"], ["e"], ["c"], u64s([0]), u64s([0])))
        assert await code_of(pending) == ErrorCode.TOO_LARGE, "a reply that the asker could not take"
        client.close()
        server.close()

    run(test)


def test_a_port_in_use_is_said_so(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        for endpoint in ("tcp://127.0.0.1:*", f"ipc://{tmp_path}/s"):
            server = PingServer(factory, loop, endpoint)
            with pytest.raises(LocalError) as caught:
                PingServer(factory, loop, server.endpoint)
            assert caught.value.code == ErrorCode.PORT_IN_USE
            client = RpcClient(factory, loop, server.endpoint)
            assert isinstance(await client.request(Ping(), 20), Pong), "the first one is unharmed"
            client.close()
            server.close()

    run(test)


def test_a_socket_left_by_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / "s"))
            left.listen()
        server = PingServer(factory, loop, f"ipc://{tmp_path}/s")
        client = RpcClient(factory, loop, server.endpoint)
        assert isinstance(await client.request(Ping(), 20), Pong)
        client.close()
        server.close()

    run(test)


@pytest.mark.parametrize(
    "endpoint", ["", "tcp://", "tcp://h", "tcp://:1", "tcp://h:0", "tcp://h:65536", "udp://h:1", "ipc://x", "ipc:///" + "x" * 108]
)
def test_endpoints_that_zeromq_cannot_use(endpoint: str) -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        for make in (factory.dealer, factory.sub, factory.router):
            with pytest.raises(LocalError) as caught:
                make(endpoint)
            assert caught.value.code == ErrorCode.BAD_ENDPOINT

    run(test)


def test_an_endpoint_that_only_a_binder_can_use() -> None:
    async def test(factory: SocketFactory, loop: Loop) -> None:
        with pytest.raises(LocalError) as caught:
            factory.dealer("tcp://127.0.0.1:*")
        assert caught.value.code == ErrorCode.BAD_ENDPOINT

    run(test)
