"""The tool finds out what happened to a page: each test lets it happen to real services, and asks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import FACTORS, FINGERPRINT, PAGE_BYTES, Cluster, Engine, dump, told, until
from pegaflow.common import clock
from pegaflow.common.key_scheme import KeyScheme
from pegaflow.common.keys import HashAlgorithm
from pegaflow.services.cli.__main__ import main

pytestmark = pytest.mark.timeout(120)

OTHER = b"g" * 16
NONE_HASH = bytes.fromhex(FACTORS["none_hash"])
POOL_PAGES = (4 << 20) // PAGE_BYTES
"""There are fewer: slots lie in slabs."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    with Cluster(folder, mover=False, pool="4MiB") as made:
        made.wait_ready()
        yield made


@pytest.fixture
def engines(cluster: Cluster) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def engine(node: str, name: str, **more: Any) -> Engine:
        made.append(Engine(cluster, node, name, **more).attached())
        return made[-1]

    yield engine
    for one in made:
        one.close()


@pytest.fixture
def tool(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*argv: str, code: int = 0, where: tuple[str, ...] | None = None) -> Any:
        """The rows of its JSON."""
        at = where if where is not None else (f"--metaserver={cluster.metaserver_endpoint}",)
        capsys.readouterr()
        got = main([*argv, *at, "-o", "json", "--timeout", "5s"])
        out, err = capsys.readouterr()
        assert got == code, err
        return json.loads(out)["rows"] if out else err

    return run


def prompt(salt: int, blocks: int = 3, more: int = 5) -> list[int]:
    return [1000 * salt + n for n in range(32 * blocks + more)]


def named(ids: list[int], fingerprint: bytes = FINGERPRINT, none_hash: bytes = NONE_HASH) -> list[bytes]:
    """Keys of the full blocks and of the tail."""
    scheme = KeyScheme(fingerprint, 32, 16, HashAlgorithm.SHA256_CBOR, none_hash)
    tail = scheme.tail(ids)
    return [*map(bytes, scheme.keys(ids)), *([tail] if tail else [])]


def sealed(cluster: Cluster, node: str) -> int:
    return int(until("an answer", lambda: dump(cluster.endpoint(node)))["counts"].get("sealed", 0))


def save(cluster: Cluster, engine: Engine, node: str, keys: list[bytes], request: str) -> None:
    before = sealed(cluster, node)
    granted = len(engine.save(keys, request).positions)
    until("sealed", lambda: sealed(cluster, node) == before + granted)


def tokens(tmp_path: Path, ids: list[int]) -> str:
    (tmp_path / "ids.json").write_text(json.dumps({"prompt_token_ids": ids}))
    return str(tmp_path / "ids.json")


def test_a_prompt_that_is_there(cluster: Cluster, engines: Any, tool: Any, tmp_path: Path) -> None:
    ids = prompt(1)
    keys = named(ids)
    p = engines("a", "p")
    save(cluster, p, "a", keys, "req-1")
    rows = tool("page", "find", "--tokens", tokens(tmp_path, ids))
    assert [(row["block"], row["first_token"], row["last_token"], row["tail"]) for row in rows] == [
        (0, 0, 31, False),
        (1, 32, 63, False),
        (2, 64, 95, False),
        (3, 96, 100, True),
    ]
    assert [row["key"] for row in rows] == [key.hex() for key in keys]
    assert {(row["state"], tuple(row["owners"]), row["size_bytes"], row["leases"]) for row in rows} == {
        ("sealed", ("a",), PAGE_BYTES, 0)
    }
    answer = p.lookup(keys[:-1], [keys[-1]], request="req-2")
    rows = tool("page", "find", "--tokens", tokens(tmp_path, ids))
    assert {(row["leases"], row["used_ms"] < 60_000) for row in rows} == {(1, True)}
    leases = tool("leases")
    assert [(row["node"], row["holder"], row["request"], row["pages"], row["kind"]) for row in leases] == [
        ("a", "p", "req-2", 4, "lease")
    ]
    p.load(answer)
    until("released", lambda: tool("leases") == [])
    (row,) = tool("why", "req-2")
    assert (row["hits"], row["tail_hits"], row["missing"], row["cause"]) == (3, 1, None, "there")
    (row,) = tool("why", "--tokens", tokens(tmp_path, ids))
    assert (row["hits"], row["cause"]) == (3, "there")


def test_one_page_by_the_first_digits_of_its_hash(cluster: Cluster, engines: Any, tool: Any) -> None:
    keys = named(prompt(2))
    save(cluster, engines("a", "p"), "a", keys, "req-3")
    digits = keys[0].hex()[32:43]
    (copy,) = tool("page", "show", digits)
    assert (copy["key"], copy["node"], copy["state"], copy["level"], copy["verified"]) == (
        keys[0].hex(),
        "a",
        "sealed",
        "memory",
        True,
    )
    assert len(copy["checksums"]) == 1 and (copy["engine"], copy["request"]) == ("p", "req-3")
    assert [(step["step"], step["who"]) for step in copy["story"]] == [("granted", "p req-3"), ("sealed", "")]
    assert tool("page", "show", keys[0].hex(), where=(f"--tier={cluster.endpoint('a')}",)) != []
    assert "is no key" in tool("page", "show", "xyz", code=2)
    assert "beginning of" in tool("page", "show", FINGERPRINT.hex()[:4], code=2)
    assert tool("page", "show", "00" * 48, code=1) == []


def test_what_was_never_saved(engines: Any, tool: Any, tmp_path: Path) -> None:
    ids = prompt(3)
    assert engines("b", "d").lookup(named(ids)[:-1], request="cold").full == 0
    (row,) = tool("why", "cold")
    assert (row["node"], row["engine"], row["hits"], row["asked"], row["missing"]) == ("b", "d", 0, 3, 0)
    assert row["cause"] == "never_saved" and "a: " in row["because"] and "b: " in row["because"]
    (row,) = tool("why", "--tokens", tokens(tmp_path, ids))
    assert row["cause"] == "never_saved"
    assert tool("why", "nobody-asked-this", code=1) == []


def test_what_is_promised(engines: Any, tool: Any) -> None:
    keys = named(prompt(4))
    p, d = engines("a", "p"), engines("b", "d")
    ref = p.intent(keys, "slow")
    grant = p.rank.take_grant(ref, clock.now() + 10)
    assert grant is not None
    d.lookup(keys, wait_s=0.3, request="early")
    (row,) = tool("why", "early")
    assert row["cause"] == "pending" and "a, by p for request slow" in row["because"]
    (row,) = tool("intents")
    assert (row["node"], row["engine"], row["requests"], row["pages"]) == ("a", "p", "slow", 4)
    assert f"rank 0 (process {os.getpid()})" in row["holders"]
    p.rank.abandoned(grant, list(grant.positions))
    until("abandoned", lambda: tool("intents") == [])
    (row,) = tool("why", "early")
    assert row["cause"] == "abandoned" and "by its rank" in row["because"]


def test_only_the_tail_is_missing(cluster: Cluster, engines: Any, tool: Any) -> None:
    keys = named(prompt(5))
    p = engines("a", "p")
    save(cluster, p, "a", keys[:-1], "head")
    p.scheduler.release(p.lookup(keys[:-1], [keys[-1]], request="headless").lease)
    (row,) = tool("why", "headless")
    assert (row["hits"], row["missing"], row["cause"]) == (3, "tail", "never_saved")
    assert row["because"].startswith("only the tail")


def test_another_fingerprint(cluster: Cluster, engines: Any, tool: Any, tmp_path: Path) -> None:
    """First one whose bytes differ, then one that hashes differently: with tokens it is found all the same."""
    ids = prompt(6)
    other = engines("a", "p8", fingerprint=OTHER, factors={**FACTORS, "kv_dtype": "fp8"})
    save(cluster, other, "a", named(ids, OTHER), "there")
    d = engines("b", "d")
    d.lookup(named(ids), request="elsewhere")
    (row,) = tool("why", "elsewhere")
    assert row["cause"] == "other_fingerprint" and "p8 on a" in row["because"] and "kv_dtype" in row["because"]
    other.close()
    seed = bytes(32)
    seeded = engines("a", "p0", fingerprint=b"h" * 16, factors={**FACTORS, "none_hash": seed.hex()})
    ids = prompt(7)
    save(cluster, seeded, "a", named(ids, b"h" * 16, seed), "there")
    rows = {row["fingerprint"]: row for row in tool("why", "--tokens", tokens(tmp_path, ids))}
    assert rows[FINGERPRINT.hex()]["cause"] == "other_fingerprint" and "none_hash" in rows[FINGERPRINT.hex()]["because"]
    assert rows[(b"h" * 16).hex()]["cause"] == "there"
    rows = tool("sessions")
    assert {(row["engine"], row["node"], row["state"]) for row in rows} == {("d", "b", "attached"), ("p0", "a", "attached")}
    assert {row["factors"]["none_hash"] for row in rows} == {seed.hex(), FACTORS["none_hash"]}


def test_evicted_when_and_by_whom(cluster: Cluster, engines: Any, tool: Any, tmp_path: Path) -> None:
    ids = prompt(8)
    p = engines("b", "p")
    save(cluster, p, "b", named(ids), "old")
    save(cluster, p, "b", named(prompt(9, POOL_PAGES)), "hungry")
    p.lookup(named(ids), request="late")
    (row,) = tool("why", "late")
    assert row["cause"] == "evicted" and "on b" in row["because"] and "room: for p hungry" in row["because"]
    (row,) = tool("why", "--tokens", tokens(tmp_path, ids))
    assert row["cause"] == "evicted"
    (row,) = tool("page", "show", named(ids)[0].hex())
    assert row["state"] == "gone" and [step["step"] for step in row["story"]] == ["granted", "sealed", "evicted"]


def test_both_sides_of_the_catalogue(cluster: Cluster, engines: Any, tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    save(cluster, engines("a", "p"), "a", named(prompt(10)), "r")
    rows = tool("catalogue", "digest")
    assert [(row["node"], row["verdict"], row["seq"] == row["believed_seq"]) for row in rows] == [
        ("a", "same", True),
        ("b", "same", True),
    ]
    assert tool("catalogue", "diff") == [] and tool("catalogue", "diff", "a") == []
    assert "no node 'z'" in tool("catalogue", "diff", "z", code=2)
    before = told(cluster.metaserver_endpoint)["counts"].get("sync_asked", 0)
    at = ["--metaserver", cluster.metaserver_endpoint, "--timeout", "8s"]
    assert main(["catalogue", "resync", "a", *at]) == 2, "nobody is there to be asked"
    assert main(["catalogue", "resync", "a", "--yes", *at]) == 0
    assert main(["catalogue", "resync", "z", "--yes", *at]) == 1
    assert told(cluster.metaserver_endpoint)["counts"]["sync_asked"] == before + 1
    until("whole again", lambda: {row["verdict"] for row in tool("catalogue", "digest")} == {"same"})
    alone = tool("catalogue", "digest", where=(f"--tier={cluster.endpoint('a')}", f"--tier={cluster.endpoint('b')}"))
    assert [(row["node"], row["verdict"]) for row in alone] == [("a", "alone"), ("b", "alone")]


def test_the_owner_is_dead(cluster: Cluster, engines: Any, tool: Any) -> None:
    """The last test: one of the tiers is gone afterwards."""
    keys = named(prompt(11))
    p = engines("b", "p")
    save(cluster, p, "b", keys, "lost")
    d = engines("a", "d")
    cluster.tiers["b"].kill()
    assert [row["node"] for row in tool("status", code=1) if not row["reachable"]] == ["b"]
    until("noticed", lambda: [node["node"] for node in told(cluster.metaserver_endpoint)["nodes"]] == ["a"])
    assert [(row["node"], row["state"]) for row in tool("status", code=1)][1:] == [("a", "ready"), ("b", "dead")]
    d.lookup(keys, request="orphan")
    (row,) = tool("why", "orphan")
    assert row["cause"] == "owner_dead" and "node b fell silent" in row["because"]
