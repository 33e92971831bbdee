"""A port never sleeps over a message: its descriptor tells of it once, and whoever took that word has to look."""

from __future__ import annotations

import asyncio
import select

import uvloop
from pegaflow.common.bus.port import Port
from pegaflow.common.bus.sockets import SocketFactory


def readable(port: Port, seconds: float) -> bool:
    return bool(select.select([port._fd], [], [], seconds)[0])


async def _send_over_a_message() -> None:
    factory = SocketFactory()
    peer, endpoint = factory.router("tcp://127.0.0.1:*")
    arrived: asyncio.Queue[list[bytes]] = asyncio.Queue()
    port = Port(factory.dealer(endpoint), asyncio.get_running_loop(), arrived.put_nowait)
    try:
        assert port.send([b"hello"])
        name, _ = peer.recv_multipart()
        await asyncio.sleep(0.05)  # the loop has nothing left to look at
        peer.send_multipart([name, b"answer"])
        assert readable(port, 5.0)
        assert port.send([b"more"])
        assert not readable(port, 0.0), "the send left the word there: this test would show nothing"
        async with asyncio.timeout(5.0):
            assert await arrived.get() == [b"answer"]
    finally:
        port.close()
        factory.close()


def test_a_send_that_takes_the_descriptor_s_word_looks_for_input() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_send_over_a_message())
