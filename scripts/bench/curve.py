"""What CURVE costs: the same questions to the same process over TCP in plain and encrypted, in turns in one run."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pegaflow.common import clock
from pegaflow.common.bus.key_list import key_line
from pegaflow.common.bus.keyring import Keyring, new_pair
from pegaflow.common.bus.roles import Identity, Role
from pegaflow.common.bus.rpc import Request, RpcServer
from pegaflow.common.bus.sockets import SocketFactory
from pegaflow.common.private import write_secret
from pegaflow.common.wire.columns import u32s, u64s
from pegaflow.common.wire.envelope import RequestHeader, encode
from pegaflow.common.wire.messages import catalogue, loads, operate
from report import percentile

LOOKUP_KEYS = 750
CHUNK_KEYS = 4_096
HANDSHAKES = 40


def keyring(folder: Path, role: Role) -> tuple[Path, str]:
    """A fresh key of this role, listed."""
    public, secret = new_pair()
    write_secret(folder / role, secret)
    with (folder / "allowed").open("a") as file:
        file.write(key_line(Identity(public, role)) + "\n")
    return folder / role, public


def _serve(server: Path, allowed: Path, told: Connection) -> None:
    """Two doors of one process, one plain and one under keys, behind which the same answers are given."""
    hits = loads.Hits(1, 1, LOOKUP_KEYS, -1, 1, u32s([0] * LOOKUP_KEYS), u64s([0] * LOOKUP_KEYS), bytes(LOOKUP_KEYS), "")
    keys = [i.to_bytes(48, "big") for i in range(CHUNK_KEYS)]
    chunk = catalogue.SyncChunk(1, 1, 0, 1, 1, keys, bytes(CHUNK_KEYS), bytes(CHUNK_KEYS), u32s([0] * CHUNK_KEYS))
    answers: dict[str, Any] = {"lookup": hits, "sync": chunk, "ping": operate.Pong("tier", "a", 1, "0", 1)}

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def answer(request: Request) -> None:
            request.reply(answers[request.message.KIND])

        doors = []
        for ring in (None, Keyring(Role.TIER, server, allowed)):
            doors.append(RpcServer(SocketFactory(ring), loop, "tcp://127.0.0.1:*", 1, answer, clock.now))
        told.send([door.endpoint for door in doors])
        await asyncio.Event().wait()

    asyncio.run(serve())


def curve_rows(repeats: int) -> list[dict[str, Any]]:
    """Rows for the report: round trips of three sizes, and a connection's handshake."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        server, _ = keyring(folder, Role.TIER)
        engine, _ = keyring(folder, Role.ENGINE)
        other, _ = keyring(folder, Role.METASERVER)
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(server, folder / "allowed", theirs), daemon=True)
        process.start()
        try:
            plain, sealed = mine.recv()
            rings = {"lookup": Keyring(Role.ENGINE, engine, None), "sync": Keyring(Role.METASERVER, other, None)}
            rings["ping"] = rings["lookup"]
            keys = [i.to_bytes(48, "big") for i in range(LOOKUP_KEYS)]
            asks = {
                "ping": operate.Ping(),
                "lookup": loads.Lookup(1, b"t" * 16, 1, "bench", keys, [], 100, False),
                "sync": catalogue.Sync(1, 1, 0),
            }
            rows = [_row(f"tcp round trip, {name}", plain, sealed, rings[name], ask, repeats) for name, ask in asks.items()]
            rows.append(_handshakes(plain, sealed, rings["ping"]))
            return rows
        finally:
            process.kill()
            process.join()


def _once(sock: Any, frames: list[bytes]) -> float:
    start = time.perf_counter()
    sock.send_multipart(frames)
    sock.recv_multipart()
    return (time.perf_counter() - start) * 1e3


def _row(what: str, plain: str, sealed: str, ring: Keyring, ask: Any, repeats: int) -> dict[str, Any]:
    open_factory, keyed_factory = SocketFactory(), SocketFactory(ring)
    one, other = open_factory.dealer(plain), keyed_factory.dealer(sealed)
    frames = encode(ask, RequestHeader(1, 60_000, 0))
    for sock in (one, other):
        _once(sock, frames)
    pairs = [(_once(one, frames), _once(other, frames)) for _ in range(repeats)]
    open_factory.close()
    keyed_factory.close()
    return _compared(what, pairs)


def _handshakes(plain: str, sealed: str, ring: Keyring) -> dict[str, Any]:
    """From no connection to the first answer."""
    frames = encode(operate.Ping(), RequestHeader(1, 60_000, 0))
    pairs = []
    for _ in range(HANDSHAKES):
        times = []
        for endpoint, own in ((plain, None), (sealed, ring)):
            factory = SocketFactory(own)
            start = time.perf_counter()
            _once(factory.dealer(endpoint), frames)
            times.append((time.perf_counter() - start) * 1e3)
            factory.close()
        pairs.append((times[0], times[1]))
    return _compared("tcp connection to first answer", pairs)


def _compared(what: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "what": what,
        "plain_p50_ms": percentile([a for a, _ in pairs], 0.5),
        "curve_p50_ms": percentile([b for _, b in pairs], 0.5),
        "curve / plain": statistics.median(b / a for a, b in pairs),
    }
