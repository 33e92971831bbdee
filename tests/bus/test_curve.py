"""CURVE over real sockets: who comes in, who may ask what, and that neither a body nor a routing id can claim who one is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from keys import Keys
from loopback import Inbox, run
from pegaflow.common import clock
from pegaflow.common.bus import sockets
from pegaflow.common.bus.endpoint import parse_endpoint, without_key
from pegaflow.common.bus.events import NODES, EventPublisher, EventSubscriber
from pegaflow.common.bus.keyring import Keyring, to_z85
from pegaflow.common.bus.roles import Identity, Role, false_claim
from pegaflow.common.bus.rpc import Request, RpcClient, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.wire.columns import u32s
from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.errors import ErrorCode, LocalError, RemoteError
from pegaflow.common.wire.messages import catalogue, operate, transfer
from pegaflow.common.wire.messages.loads import Done
from pegaflow.services.tier.peers import Peers
from wire_tap import WireTap, replay

BUDGET_S = 10.0
ANY = "tcp://127.0.0.1:*"


class Service:
    """A service that says yes to everything that reaches it."""

    def __init__(self, factory: SocketFactory, loop: asyncio.AbstractEventLoop, endpoint: str = ANY) -> None:
        self.reached: list[str] = []
        self.server = RpcServer(factory, loop, endpoint, 7, self._asked, clock.now)
        self.endpoint = self.server.endpoint

    def _asked(self, request: Request) -> None:
        self.reached.append(request.message.KIND)
        request.reply(Done())


@pytest.fixture(autouse=True)
def short_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is refused comes again after this long."""
    monkeypatch.setattr(sockets, "HANDSHAKE_MS", 300)


async def until(check: Callable[[], Any]) -> None:
    while not check():
        await asyncio.sleep(0.002)


async def code(client: RpcClient, message: Any, budget_s: float = BUDGET_S) -> str:
    """Empty: the service said yes."""
    try:
        answer = await client.request(message, budget_s)
    except RemoteError as error:
        return error.code
    assert isinstance(answer, Done)
    return ""


def hello(node: str, endpoint: str) -> catalogue.Hello:
    return catalogue.Hello(node, 1, endpoint, endpoint, endpoint, "0")


def test_what_is_bound_with_a_keyring_is_told_with_its_key(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        ring = Keys(tmp_path).server(Role.TIER)
        factory = SocketFactory(ring)
        service = Service(factory, loop)
        assert parse_endpoint(service.endpoint).key == ring.public_hex
        assert service.server.bind(f"ipc://{tmp_path}/s.sock") == f"ipc://{tmp_path}/s.sock"
        service.server.close()
        factory.close()

    run(scenario)


def test_a_listed_key_comes_in_and_asks_what_its_role_may(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        tier = SocketFactory(keys.client(Role.TIER, "node-b"))
        engine = SocketFactory(keys.client(Role.ENGINE))
        operator = SocketFactory(keys.client(Role.OPERATOR))
        factory = SocketFactory(keys.server(Role.TIER))
        service = Service(factory, loop)
        pin = transfer.Pin("node-b", [b"k" * 48], 1, 1000)
        clients = {name: RpcClient(made, loop, service.endpoint) for name, made in (("t", tier), ("e", engine), ("o", operator))}
        assert await code(clients["t"], pin) == ""
        assert await code(clients["e"], pin) == ErrorCode.FORBIDDEN
        assert await code(clients["t"], operate.Drain()) == ErrorCode.FORBIDDEN
        assert await code(clients["e"], operate.Drain()) == ErrorCode.FORBIDDEN
        assert await code(clients["o"], operate.Drain()) == ""
        assert await code(clients["e"], operate.Ping()) == ""
        assert service.reached == ["pin", "drain", "ping"], "what is forbidden must not reach the service"
        assert service.server.forbidden == 3
        for client in clients.values():
            client.close()
        service.server.close()
        for made in (tier, engine, operator, factory):
            made.close()

    run(scenario)


@pytest.mark.parametrize("how", ["no key", "unlisted", "wrong server key"])
def test_who_has_no_business_here_gets_no_answer_and_is_counted(tmp_path: Path, how: str) -> None:
    async def scenario(plain: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        listed = keys.client(Role.TIER)
        other = keys.client(Role.TIER)
        stranger = SocketFactory(keys.client(Role.TIER, listed=False))
        factory = SocketFactory(keys.server(Role.TIER))
        service = Service(factory, loop)
        good = SocketFactory(listed)
        if how == "no key":
            client = RpcClient(plain, loop, without_key(service.endpoint))
        elif how == "unlisted":
            client = RpcClient(stranger, loop, service.endpoint)
        else:  # somebody who answers in a service's place has not its key
            client = RpcClient(good, loop, f"{without_key(service.endpoint)}#{other.public_hex}")
        assert await code(client, operate.Ping(), 0.4) in (ErrorCode.DEADLINE, ErrorCode.UNREACHABLE)
        if how == "unlisted":
            await until(lambda: factory.refused["unknown_key"] > 0)
        assert service.reached == []
        friend = RpcClient(good, loop, service.endpoint)
        assert await code(friend, operate.Ping()) == "", "the service keeps serving"
        for one in (client, friend):
            one.close()
        service.server.close()
        for made in (factory, good, stranger):
            made.close()

    run(scenario)


def test_ipc_of_the_same_socket_needs_no_key(tmp_path: Path) -> None:
    async def scenario(plain: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        operator = SocketFactory(keys.client(Role.OPERATOR))
        factory = SocketFactory(keys.server(Role.TIER))
        service = Service(factory, loop, f"ipc://{tmp_path}/s.sock")
        at = service.server.bind(ANY)
        second = service.server.bind(f"ipc://{tmp_path}/t.sock")  # bound after TCP, and still without CURVE
        over_tcp = RpcClient(operator, loop, at)
        for endpoint in (service.endpoint, second):
            local = RpcClient(plain, loop, endpoint)
            assert await code(local, operate.Drain()) == ""
            local.close()
        assert await code(over_tcp, operate.Drain()) == ""
        assert service.server.forbidden == 0 and not factory.refused
        over_tcp.close()
        service.server.close()
        operator.close()
        factory.close()

    run(scenario)


def test_an_owner_whose_key_nobody_said_is_a_failure_like_any_other(tmp_path: Path) -> None:
    async def test(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        factory = SocketFactory(Keys(tmp_path).client(Role.TIER, "a"))
        peers, answers = Peers(factory, loop), Inbox[Any]()
        peers.send("tcp://127.0.0.1:1", 1, operate.Ping(), 1.0, answers.put)
        refused = await answers.take()
        assert isinstance(refused, LocalError) and refused.code == ErrorCode.BAD_ENDPOINT
        peers.close()
        factory.close()

    run(test)


def test_a_key_that_is_struck_off_asks_nothing_more_and_one_that_is_listed_later_comes_in(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        leaving, coming = keys.client(Role.OPERATOR), keys.client(Role.OPERATOR)
        ring = keys.server(Role.TIER)
        line = next(line for line in keys.allowed.read_text().splitlines() if coming.public_hex in line)
        keys.strike(coming)
        ring.reload()
        factory, old, new = SocketFactory(ring), SocketFactory(leaving), SocketFactory(coming)
        service = Service(factory, loop)
        early, late = RpcClient(old, loop, service.endpoint), RpcClient(new, loop, service.endpoint)
        assert await code(early, operate.Ping()) == ""
        answer = loop.create_task(code(late, operate.Ping()))
        await until(lambda: factory.refused["unknown_key"] > 1)  # it comes again: 300 and not 400
        keys.strike(leaving)
        keys.allowed.write_text(keys.allowed.read_text() + line + "\n")
        assert ring.reload() == (1, 1)
        assert await answer == "", "without a restart on either side"
        assert await code(early, operate.Ping()) == ErrorCode.FORBIDDEN, "its connection was open all the time"
        keys.allowed.write_text("nonsense\n")
        with pytest.raises(LocalError):
            ring.reload()
        assert await code(late, operate.Ping()) == "", "a list that cannot be read changes nothing"
        early.close()
        late.close()
        service.server.close()
        for made in (factory, old, new):
            made.close()

    run(scenario)


def test_nobody_speaks_for_another_node_or_advertises_a_third_party(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        mine, other = keys.client(Role.TIER, "node-a"), keys.client(Role.TIER, "node-b")
        factory, tier = SocketFactory(keys.server(Role.METASERVER)), SocketFactory(mine)
        service = Service(factory, loop)
        client = RpcClient(tier, loop, service.endpoint)
        here = f"tcp://127.0.0.1:1#{mine.public_hex}"
        assert await code(client, hello("node-a", here)) == ""
        away = "ipc:///run/x.sock"  # which has no key, and is another socket on each machine
        assert await code(client, catalogue.Hello("node-a", 1, here, here, away, "0")) == "", "for operators there"
        for wrong in (
            hello("node-b", here),
            catalogue.Bye("node-b", 1),
            catalogue.Locate("node-b", [b"k" * 48], 0, False),
            hello("node-a", f"tcp://127.0.0.1:1#{other.public_hex}"),
            hello("node-a", "tcp://127.0.0.1:1"),
            hello("node-a", away),
            catalogue.Hello("node-a", 1, away, here, here, "0"),
            catalogue.Hello("node-a", 1, here, away, here, "0"),
        ):
            assert await code(client, wrong) == ErrorCode.FORBIDDEN, wrong
        assert service.reached == ["hello", "hello"] and service.server.forbidden == 8
        third = [transfer.Take("node-a", 1, endpoint, [], u32s()) for endpoint in ("tcp://127.0.0.1:1", away)]
        for claim in (transfer.Take("node-b", 1, here, [], u32s()), *third):
            assert false_claim(Identity(mine.public_hex, Role.TIER, "node-a"), claim)
        assert not false_claim(Identity(mine.public_hex, Role.TIER, "node-a"), transfer.Take("node-a", 1, here, [], u32s()))
        assert await code(client, catalogue.Bye("node-a", 1)) == ""
        client.close()
        service.server.close()
        tier.close()
        factory.close()

    run(scenario)


def test_a_routing_id_of_somebody_else_gives_neither_his_role_nor_his_answers(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        operator, engine = keys.client(Role.OPERATOR), keys.client(Role.ENGINE)
        factory = SocketFactory(keys.server(Role.TIER))
        service = Service(factory, loop)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        at = parse_endpoint(service.endpoint)

        def named(ring: Keyring) -> zmq.Socket[bytes]:
            sock = context.socket(zmq.DEALER)
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.ROUTING_ID, b"operator")
            sock.setsockopt(zmq.CURVE_SERVERKEY, to_z85(at.key))
            sock.setsockopt(zmq.CURVE_PUBLICKEY, ring.public)
            sock.setsockopt(zmq.CURVE_SECRETKEY, ring.secret)
            sock.connect(at.address)
            return sock

        async def ask(sock: zmq.Socket[bytes], message: Any) -> Any:
            sock.send_multipart(encode(message, RequestHeader(1, 5000, 0)))
            await until(lambda: sock.poll(0))
            return open_envelope(sock.recv_multipart(), ReplyHeader).message()

        first = named(operator)
        assert await ask(first, operate.Drain()) == Done()
        second = named(engine)
        second.send_multipart(encode(operate.Drain(), RequestHeader(2, 5000, 0)))
        for _ping in range(20):
            assert await ask(first, operate.Ping()) == Done(), "nobody takes its place while it is there"
        assert service.reached.count("drain") == 1 and not second.poll(0)
        first.close()
        second.close()
        await until(lambda: not service.server.port.send([b"operator", b""]))  # the name is free now
        third = named(engine)
        refused = await ask(third, operate.Drain())
        assert refused.code == ErrorCode.FORBIDDEN, "the name has a new holder, whose key counts"
        assert service.reached.count("drain") == 1 and service.server.forbidden >= 1
        third.close()
        context.destroy(linger=0)
        service.server.close()
        factory.close()

    run(scenario)


def port_of(endpoint: str) -> int:
    return int(without_key(endpoint).rpartition(":")[2])


def test_a_recorded_conversation_cannot_be_said_again(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        operator = SocketFactory(keys.client(Role.OPERATOR))
        factory = SocketFactory(keys.server(Role.TIER))
        service = Service(factory, loop)
        port = port_of(service.endpoint)
        tap = WireTap(port)
        at = f"tcp://127.0.0.1:{await tap.start()}#{parse_endpoint(service.endpoint).key}"
        client = RpcClient(operator, loop, at)
        assert await code(client, operate.LogLevel("a_word_that_is_not_seen")) == ""
        assert await code(client, operate.Drain()) == ""
        assert service.reached == ["log_level", "drain"]
        said = bytes(tap.seen)
        assert len(said) > 500 and b"a_word_that_is_not_seen" not in said and b"drain" not in said
        client.close()
        before = len(factory.refused)
        assert b"drain" not in await replay(port, said)
        assert len(factory.refused) == before, "it does not even get as far as to show a key"
        assert service.reached == ["log_level", "drain"]
        friend = RpcClient(operator, loop, service.endpoint)
        assert await code(friend, operate.Ping()) == ""
        friend.close()
        await tap.close()
        service.server.close()
        operator.close()
        factory.close()

    run(scenario)


def test_a_byte_changed_on_the_way_never_makes_another_message(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        operator = SocketFactory(keys.client(Role.OPERATOR))
        factory = SocketFactory(keys.server(Role.TIER))
        service = Service(factory, loop)
        port, key = port_of(service.endpoint), parse_endpoint(service.endpoint).key

        async def through(flip: int | None) -> tuple[str, int]:
            tap = WireTap(port, flip)
            client = RpcClient(operator, loop, f"tcp://127.0.0.1:{await tap.start()}#{key}")
            said = await code(client, operate.LogLevel("warning"), 0.3 if flip is not None else BUDGET_S)
            client.close()
            await tap.close()
            return said, len(tap.seen)

        said, whole = await through(None)
        assert said == ""
        lost = 0
        for flip in [*range(0, whole, 61), whole - 1, whole - 30, whole - 90]:
            before = list(service.reached)
            said, _seen = await through(flip)
            assert said in ("", ErrorCode.DEADLINE), "it comes as it was said (a filler byte was changed), or not at all"
            lost += said != ""
            came = service.reached[len(before) :]
            assert came == ["log_level"] or (said != "" and came == []), "it may have come at the last moment, and its answer not"
        assert lost > 5
        friend = RpcClient(operator, loop, service.endpoint)
        assert await code(friend, operate.Ping()) == ""
        friend.close()
        service.server.close()
        operator.close()
        factory.close()

    run(scenario)


def test_events_are_for_the_roles_that_follow_them(tmp_path: Path) -> None:
    async def scenario(_: SocketFactory, loop: asyncio.AbstractEventLoop) -> None:
        keys = Keys(tmp_path)
        router, engine = SocketFactory(keys.client(Role.ROUTER)), SocketFactory(keys.client(Role.ENGINE))
        factory = SocketFactory(keys.server(Role.METASERVER))
        publisher = EventPublisher(factory, loop, ANY, "m", 7)
        heard: dict[str, Inbox[Any]] = {"router": Inbox(), "engine": Inbox()}
        subscribers = []
        for name, made in (("engine", engine), ("router", router)):
            subscriber = EventSubscriber(made, loop, publisher.endpoint, lambda *event, inbox=heard[name]: inbox.put(event[2]))
            subscriber.subscribe(NODES)
            subscribers.append(subscriber)
        await heard["router"].take()
        await until(lambda: factory.refused["role"] > 1)
        publisher.publish(NODES, catalogue.NodeDown("node-a", 1, "dead"))
        await heard["router"].take(lambda message: isinstance(message, catalogue.NodeDown))
        assert heard["engine"].items == []
        for subscriber in subscribers:
            subscriber.close()
        publisher.close()
        for made in (router, engine, factory):
            made.close()

    run(scenario)
