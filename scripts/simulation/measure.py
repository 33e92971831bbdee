"""What events and messages cost on this machine: the real `handle()`, the real codec, real sockets, the real slot table.

CPU time of the thread (or process), not time on the wall: other programs on the machine change little.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import uvloop
import xxhash
from pegaflow.common.bus.rpc import Request, RpcClient, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.slot_table import SlotEntry, SlotState, SlotTable, table_bytes
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.envelope import EventHeader, ReplyHeader, RequestHeader, encode, open_envelope
from pegaflow.common.wire.messages import catalogue, transfer
from pegaflow.common.wire.messages.attach import Welcome
from pegaflow.services.metaserver import events
from pegaflow.services.metaserver.commands import AskChunk
from pegaflow.services.metaserver.state import MetaserverState
from pegaflow.services.tier.snapshots import SYNC_KEYS

from simulation.cluster import Cluster, Setup
from simulation.costs import DEFAULT_HANDLE, Costs, Line
from simulation.tally import percentile

ROUNDS = 10
COLD_S = 0.004
CHECKSUMMED = 64 << 20
DISK_KINDS = ("tier.disk_read", "tier.disk_written")
TRIM = 0.95
"""Of the measurements of one size: the slowest are those into which a collection of garbage or another process fell."""


def fitted(points: Sequence[tuple[int, float]]) -> Line:
    """The line through measured (keys, seconds): weighted least squares over the mean of each size, the slowest left out."""
    sizes: dict[int, list[float]] = {}
    for keys, seconds in points:
        sizes.setdefault(keys.bit_length(), []).append(seconds)
    counts: dict[int, list[int]] = {}
    for keys, _ in points:
        counts.setdefault(keys.bit_length(), []).append(keys)
    rows = []
    for bits, times in sizes.items():
        kept = sorted(times)[: max(1, int(TRIM * len(times)))]
        rows.append((len(kept), sum(counts[bits]) / len(counts[bits]), sum(kept) / len(kept)))
    total = sum(weight for weight, _, _ in rows)
    mean_x = sum(weight * x for weight, x, _ in rows) / total
    mean_y = sum(weight * y for weight, _, y in rows) / total
    spread = sum(weight * (x - mean_x) ** 2 for weight, x, _ in rows)
    slope = sum(weight * (x - mean_x) * (y - mean_y) for weight, x, y in rows) / spread if spread else 0.0
    slope = max(0.0, slope)
    return Line(max(0.0, mean_y - slope * mean_x), slope)


def handles(quick: bool) -> dict[str, Line]:
    """A small cluster, every page a page, that loses a metaserver, without and with a disk; each `handle()` timed."""
    seconds = 3.0 if quick else 8.0
    setup = Setup(nodes=4, seconds=seconds, warm=0.0, preload=1000, lose_at=seconds / 2)
    plain: dict[str, list[tuple[int, float]]] = {}
    Cluster(setup, plain).run()
    disk: dict[str, list[tuple[int, float]]] = {}
    Cluster(replace(setup, pool_pages=1000, disk_pages=20_000, lose_at=0.0), disk).run()
    found = {**{kind: disk[kind] for kind in DISK_KINDS if kind in disk}, **plain}
    return {**DEFAULT_HANDLE, **{kind: fitted(points) for kind, points in found.items() if len(points) >= 8}}


def chunks(quick: bool) -> Line:
    """A metaserver's part of a snapshot: the real state, given one in chunks of the real size and of a sixteenth of it."""
    points: list[tuple[int, float]] = []
    random = Random(1)
    for node, size in enumerate((SYNC_KEYS, SYNC_KEYS // 16) * (1 if quick else 3)):
        state, count = MetaserverState(1, lambda: 0.0), 24
        hello = catalogue.Hello(f"n{node}", 7, "tcp://a:1", "tcp://a:2", "tcp://a:3", "0")
        state.handle(events.Asked(None, hello), 0.0)
        waiting = deque(state.handle(events.Heard(f"n{node}", 7, 0, Welcome()), 0.0))
        while waiting:
            command = waiting.popleft()
            if not isinstance(command, AskChunk):
                continue
            keys = [random.randbytes(48) for _ in range(size)]
            tags, sync = bytes([catalogue.SEALED]) * size, command.sync
            sizes = u32s([1 << 20] * size)
            chunk = catalogue.SyncChunk(1, sync.sync_id, sync.chunk, count, 0, keys, tags, bytes(size), sizes)
            event = events.ChunkAnswer(f"n{node}", sync.sync_id, chunk)
            began = time.thread_time()
            out = state.handle(event, 0.0)
            points.append((size, time.thread_time() - began))
            waiting.extend(out)
    return fitted(points)


def _messages(count: int) -> list[tuple[Any, Any]]:
    keys = [i.to_bytes(48, "little") for i in range(count)]
    tags, some, many = bytes(count), u32s([1 << 20] * count), u64s([1 << 40] * count)
    located = catalogue.Located(tags, 2, u32s([0] * 2 * count), ["n1"] * 2, u64s([1] * 2), ["tcp://10.0.0.1:7400"] * 2)
    pinned = transfer.Pinned(1, some, some, many, some, bytes(16 * count), "n1/0123456789abcdef", bytes(512), 1, 1)
    return [
        (catalogue.Locate("n1", keys, 1000, True), RequestHeader(1, 1000, 0)),
        (located, ReplyHeader(1, 1)),
        (catalogue.Delta(keys, tags, tags, some), EventHeader("n1", 1, 1)),
        (pinned, ReplyHeader(1, 1)),
    ]


def _per_call(call: Callable[[], object], calls: int = 300) -> float:
    times = []
    for _ in range(5):
        began = time.thread_time()
        for _ in range(calls):
            call()
        times.append((time.thread_time() - began) / calls)
    return sorted(times)[len(times) // 2]


def _decode(frames: list[bytes], shape: Any) -> Any:
    return open_envelope(frames, shape).message()


def codec() -> tuple[Line, Line]:
    """Seconds to encode and to decode, mean of four kinds of message."""
    ends: list[tuple[float, float]] = []
    for count in (1, 256):
        encoding = decoding = 0.0
        for message, header in _messages(count):
            topic = b"c" if isinstance(header, EventHeader) else b""
            frames, shape = encode(message, header, topic), type(header)
            encoding += _per_call(partial(encode, message, header, topic)) / 4
            decoding += _per_call(partial(_decode, frames, shape)) / 4
        ends.append((encoding, decoding))
    each = [max(0.0, (ends[1][i] - ends[0][i]) / 255) for i in (0, 1)]
    return Line(ends[0][0] - each[0], each[0]), Line(ends[0][1] - each[1], each[1])


async def _round_trips(folder: str) -> tuple[float, float]:
    """CPU seconds of one request and its reply (two sends, two receives; 16 are on their way, client and server on one loop), and
    what it costs on top to wake a process that has slept."""
    loop = asyncio.get_running_loop()
    factory = SocketFactory()

    def answer(request: Request) -> None:
        request.reply(catalogue.HelloAck(True))

    server = RpcServer(factory, loop, f"ipc://{folder}/s", 1, answer, time.monotonic)
    client = RpcClient(factory, loop, f"ipc://{folder}/s")
    busy: list[float] = []
    cold: list[float] = []
    slept: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(10):
            await asyncio.gather(*(client.request(catalogue.Nodes(), 5.0) for _ in range(16)))
        busy.append((time.process_time() - began) / 160)
        for times, asks in ((cold, True), (slept, False)):
            began = time.process_time()
            for _ in range(25):
                await asyncio.sleep(COLD_S)
                if asks:
                    await client.request(catalogue.Nodes(), 5.0)
            times.append((time.process_time() - began) / 25)
    client.close()
    server.close()
    factory.close()
    trip = percentile(busy, 0.5)
    return trip, max(0.0, percentile(cold, 0.5) - percentile(slept, 0.5) - trip) / 2  # the server woke, then the client


def stores() -> float:
    """Seconds of one entry of the slot table."""
    table = SlotTable(memoryview(bytearray(table_bytes(1 << 30))))
    entry = SlotEntry(SlotState.SEALED, bytes(48), 0, 1, 64, 1 << 20, 0, 0, bytes(16), 1)
    return _per_call(lambda: table.store(7, entry), 2000)


def checksums(page_bytes: int) -> float:
    """Bytes per second of one thread over pages of this size in 64 MiB of written memory: the median of several rounds."""
    memory = memoryview(bytearray(b"pegaflow" * (CHECKSUMMED // 8)))
    pages = [memory[at : at + page_bytes] for at in range(0, CHECKSUMMED - page_bytes + 1, page_bytes)]
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for page in pages:
            xxhash.xxh3_128_digest(page)
        times.append(time.thread_time() - began)
    return len(pages) * page_bytes / percentile(times, 0.5)


def measured(quick: bool = False) -> Costs:
    """Takes some ten seconds, a few if `quick`."""
    encode_line, decode_line = codec()
    # uvloop, as services run
    with tempfile.TemporaryDirectory(prefix="pfs-") as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        trip, wake = runner.run(_round_trips(folder))
    # The codec's part of a small message is in the round trip already; what sockets and loop cost is shared alike.
    side = max(0.0, trip / 4 - (encode_line.fixed + decode_line.fixed) / 2)
    return Costs(
        Line(side + decode_line.fixed, decode_line.each),
        Line(side + encode_line.fixed, encode_line.each),
        Line(stores()),
        {**handles(quick), "metaserver.chunk": chunks(quick)},
        wake=wake,
    )
