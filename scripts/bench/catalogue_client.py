"""One client of a catalogue, in a process of its own, told what to do by lines on stdin. Needs only what its own catalogue needs:
Mooncake's runs in an environment without pegaflow.

    catalogue_client.py pegaflow|echo|redis|pipelined|mooncake ENDPOINT…       ready ▶ stdout
    stdin:  {"do": "locate", "keys": 64, "of": 100000, "seconds": 0.5}      ▶ {"requests": n, "micros": [p50 …]}
            {"do": "longest", …}                                                 ▶ {"longest_ms": [… the longest last]}
            {"do": "prepare", "from": 0, "count": 8192}                     the keys that are meant from now on; not timed
            {"do": "put", "keys": 64}                                       ▶ {"seconds": s}; also "remove"
            {"do": "about"}                                                 ▶ {"about": "who answers, and who reads the answers"}
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Protocol

from catalogue_mooncake import PACKAGE
from report import percentile

KEY_BYTES = 48
ROWS = 4096
WINDOW = 256
"""Changes on their way without an answer, of a tier (PUB drops what a queue cannot take) and of a Redis pipeline."""


def chunk(number: int) -> list[bytes]:
    """Keys number × ROWS … of the catalogue, the same in every process, spread like hashes."""
    data = random.Random(number).randbytes(32 * ROWS)
    return [b"bench-fingerpri!" + data[i : i + 32] for i in range(0, len(data), 32)]


def some(of: int, count: int, seed: int) -> Iterator[list[bytes]]:
    """Endless: `count` keys of the first `of`, in runs as long as a prefix would be; the bytes are new objects each time."""
    pool = [key for number in range(max(1, min(of // ROWS, 32))) for key in chunk(number)][:of]
    spread = random.Random(seed)
    while True:
        first = spread.randrange(max(1, len(pool) - count))
        yield [bytes(bytearray(key)) for key in pool[first : first + count]]


class Catalogue(Protocol):
    """Everything but `about` and `names` is timed. `locate` returns how many of the keys are known."""

    def about(self) -> str:
        """Versions."""
        ...

    def names(self, keys: list[bytes]) -> list[Any]:
        """What this catalogue calls the keys; the others take these."""
        ...

    def locate(self, keys: list[Any]) -> int: ...

    def put(self, keys: list[Any]) -> None: ...

    def remove(self, keys: list[Any]) -> None: ...

    def settle(self) -> None:
        """Returns once all that was put and removed is answered."""
        ...


class AsTheyAre:
    """Keys are their own names, and every call returns with its answer."""

    def names(self, keys: list[bytes]) -> list[Any]:
        return keys

    def settle(self) -> None: ...


class Pegaflow(AsTheyAre):
    def __init__(self, endpoint: str) -> None:
        from pegaflow.common.bus.sockets import SocketFactory
        from pegaflow.common.wire.envelope import ReplyHeader, RequestHeader, encode, open_envelope
        from pegaflow.common.wire.messages.catalogue import Locate

        self._sock = SocketFactory().dealer(endpoint)
        self._number = 0

        def send(keys: list[bytes]) -> None:
            self._number += 1
            self._sock.send_multipart(encode(Locate("bench", keys, 0, False), RequestHeader(self._number, 5000, 0)))

        self._send = send
        self._read: Callable[[list[bytes]], Any] = lambda frames: open_envelope(frames, ReplyHeader).message()

    def about(self) -> str:
        return "this checkout"

    def locate(self, keys: list[bytes]) -> int:
        self._send(keys)
        return int(self._read(self._sock.recv_multipart()).states.count(2))

    def put(self, keys: list[bytes]) -> None:
        raise NotImplementedError("tiers publish, see catalogue.py")

    remove = put


class Echo(Pegaflow):
    """Sends what :class:`Pegaflow` sends, and gets it back unread: no catalogue over these sockets can be faster."""

    def locate(self, keys: list[bytes]) -> int:
        self._send(keys)
        self._sock.recv_multipart()
        return len(keys)


class Redis(AsTheyAre):
    """One command at a time. Ends the process where replies would be read in Python: that would be a figure of redis-py's."""

    def __init__(self, endpoint: str) -> None:
        import redis

        self._client = redis.Redis(unix_socket_path=endpoint) if endpoint.startswith("/") else redis.Redis(port=int(endpoint))
        connection: Any = self._client.connection_pool.make_connection()
        self._parser = type(connection._parser).__name__
        if "Hiredis" not in self._parser:
            raise SystemExit(f"redis-py reads replies with {self._parser}: hiredis is missing (configs/requirements-dev.txt)")

    def about(self) -> str:
        said = self._client.info("server")
        server = f"{said.get('server_name', 'redis')} {said.get('valkey_version', said['redis_version'])}"
        return f"{server} on a unix socket, redis-py {version('redis')}, hiredis {version('hiredis')} ({self._parser})"

    def locate(self, keys: list[bytes]) -> int:
        return len(keys) - self._client.mget(keys).count(None)

    def put(self, keys: list[bytes]) -> None:
        self._client.mset(dict.fromkeys(keys, b"1"))

    def remove(self, keys: list[bytes]) -> None:
        self._client.delete(*keys)


class PipelinedRedis(Redis):
    """As many commands without an answer as a tier has deltas."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._pipeline = self._client.pipeline(transaction=False)

    def put(self, keys: list[bytes]) -> None:
        self._pipeline.mset(dict.fromkeys(keys, b"1"))
        self._sent()

    def remove(self, keys: list[bytes]) -> None:
        self._pipeline.delete(*keys)
        self._sent()

    def _sent(self) -> None:
        if len(self._pipeline) == WINDOW:
            self.settle()

    def settle(self) -> None:
        """Raises redis.RedisError if one of them failed."""
        self._pipeline.execute()


class Mooncake(AsTheyAre):
    """Its keys are texts."""

    def __init__(self, master: str, own: str, segment_mib: str) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        if self._store.setup(own, "P2PHANDSHAKE", int(segment_mib) << 20, 16 << 20, "tcp", "", master):
            raise SystemExit("mooncake refuses")

    def about(self) -> str:
        return PACKAGE

    def names(self, keys: list[bytes]) -> list[Any]:
        return [key.hex() for key in keys]

    def locate(self, keys: list[str]) -> int:
        return int(sum(self._store.batch_is_exist(keys)))

    def put(self, keys: list[str]) -> None:
        """Of the least that can be put: one byte."""
        if self._store.put_batch(keys, [b"1"] * len(keys)):
            raise SystemExit("mooncake does not take it")

    def remove(self, keys: list[str]) -> None:
        for key in keys:
            self._store.remove(key)


def locate(catalogue: Catalogue, keys: int, of: int, seconds: float, seed: int) -> dict[str, Any]:
    questions = some(of, keys, seed)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        question = catalogue.names(next(questions))
        began = time.perf_counter()
        known = catalogue.locate(question)
        times.append((time.perf_counter() - began) * 1e6)
        if known != keys:
            raise SystemExit(f"{known} of {keys} keys are known")
    return {
        "requests": len(times),
        "busy_s": sum(times) / 1e6,
        "p50": percentile(times, 0.50),
        "p99": percentile(times, 0.99),
    }


def longest(catalogue: Catalogue, keys: int, of: int, seconds: float, seed: int) -> dict[str, Any]:
    questions = some(of, keys, seed)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        question = catalogue.names(next(questions))
        began = time.perf_counter()
        catalogue.locate(question)
        times.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.0005)
    return {"longest_ms": sorted(times)[-10:]}


def prepared(first: int, count: int) -> list[bytes]:
    """`count` keys from `first` on, multiples of ROWS."""
    return [key for number in range(first // ROWS, (first + count) // ROWS) for key in chunk(number)]


def change(catalogue: Catalogue, what: str, keys: int, names: list[Any]) -> dict[str, Any]:
    """All of the names, `keys` per request."""
    call: Callable[[list[Any]], None] = getattr(catalogue, what)
    began = time.perf_counter()
    for at in range(0, len(names), keys):
        call(names[at : at + keys])
    catalogue.settle()
    return {"seconds": time.perf_counter() - began}


KINDS: dict[str, Callable[..., Catalogue]] = {
    "pegaflow": Pegaflow,
    "echo": Echo,
    "redis": Redis,
    "pipelined": PipelinedRedis,
    "mooncake": Mooncake,
}


def main() -> None:
    catalogue = KINDS[sys.argv[1]](*sys.argv[2:])
    names: list[Any] = []
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        match order["do"]:
            case "locate":
                answer = locate(catalogue, order["keys"], order["of"], order["seconds"], order["seed"])
            case "longest":
                answer = longest(catalogue, order["keys"], order["of"], order["seconds"], order["seed"])
            case "prepare":
                names = catalogue.names(prepared(order["from"], order["count"]))
            case "put" | "remove" as what:
                answer = change(catalogue, what, order["keys"], names)
            case "about":
                answer = {"about": catalogue.about()}
            case other:
                raise SystemExit(f"what is {other}?")
        print("answer", json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
