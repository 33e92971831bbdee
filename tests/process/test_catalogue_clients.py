"""Clients of scripts/bench/catalogue at a real Redis: who reads the replies, and how many commands are on their way."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis_server import RedisServer

KEYS = [b"key %d" % number for number in range(600)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "bench"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "scripts"))
    with RedisServer(tmp_path) as found:
        client = redis.Redis(unix_socket_path=str(found.socket), retry=Retry(NoBackoff(), 0))
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                assert found.process.poll() is None
        yield found
        client.close()


def test_replies_are_read_by_hiredis_or_not_at_all(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = importlib.import_module("catalogue_client")
    said = client.Redis(str(server.socket)).about()
    assert "hiredis" in said and "(_HiredisParser)" in said and "redis-py" in said
    in_python = redis.ConnectionPool(
        redis.UnixDomainSocketConnection,
        path=str(server.socket),
        parser_class=importlib.import_module("redis._parsers")._RESP2Parser,
        protocol=2,
    )
    plain = redis.Redis(connection_pool=in_python)
    monkeypatch.setattr(redis, "Redis", lambda **_: plain)
    with pytest.raises(SystemExit, match="hiredis is missing"):
        client.Redis(str(server.socket))


def test_a_pipeline_has_as_many_commands_on_their_way_as_a_tier_has_deltas(server: RedisServer) -> None:
    module: Any = importlib.import_module("catalogue_client")
    client, looking = module.PipelinedRedis(str(server.socket)), redis.Redis(unix_socket_path=str(server.socket))
    for number, key in enumerate(KEYS, start=1):
        client.put([key])
        if number == module.WINDOW - 1:
            assert looking.dbsize() == 0
        elif number == module.WINDOW:
            assert looking.dbsize() == module.WINDOW
    client.settle()
    assert looking.dbsize() == len(KEYS) and client.locate(KEYS) == len(KEYS)
    for at in range(0, len(KEYS), 100):
        client.remove(KEYS[at : at + 100])
    assert looking.dbsize() == len(KEYS)
    client.settle()
    client.settle()
    assert looking.dbsize() == 0
    looking.close()


def test_all_sides_put_and_remove_what_was_prepared(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes, as the benchmark starts them; ours ends when the metaserver shows the last key, and then no more."""
    catalogue = importlib.import_module("catalogue")
    monkeypatch.setattr(catalogue, "CLIENTS", (1,))
    monkeypatch.setattr(catalogue, "CHANGE_KEYS", (1000,))
    with catalogue.Machine() as machine:
        _, at = machine.metaserver()
        sides = {
            catalogue.OURS: [machine.tier("a", at).ready()],
            catalogue.BLOCKING: [machine.client("redis", str(server.socket)).ready()],
            catalogue.PIPELINED: [machine.client("pipelined", str(server.socket)).ready()],
        }
        (row,) = catalogue.changes(sides, catalogue.ROWS, 1)
        assert all(row[name] > 0 for name in catalogue.CHANGED)
        with redis.Redis(unix_socket_path=str(server.socket)) as looking:
            assert looking.dbsize() == 0
        blocking = sides[catalogue.BLOCKING][0]
        blocking.do(do="prepare", count=catalogue.ROWS, **{"from": 0})
        blocking.do(do="put", keys=1000)
        asked = {"do": "locate", "keys": 64, "of": catalogue.ROWS, "seconds": 0.05, "seed": 0}
        assert blocking.do(**asked)["requests"] > 0
        assert "hiredis" in blocking.do(do="about")["about"]
