"""Pages that leave memory, with real tiers, files and kills: more is saved than the pool holds, and all of it comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import PAGE_BYTES, Cluster, Engine, ask, dump, make_keys, page_bytes, until
from pegaflow.common.pool import GRANULE
from pegaflow.common.private import write_secret
from pegaflow.common.wire.messages.space import Keep, Probe, Probed
from pegaflow.connector.session import LookupAnswer

pytestmark = pytest.mark.timeout(120)
POOL = 16 << 20
PAGES = 600
BATCH = 50
DISK, SEALED = 1, 2
KEY = "0f" * 32
FROM_DISK = 2


def made(**options: Any) -> Cluster:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    write_secret(folder / "disk.key", KEY)
    disk = ["--disk-dir", str(folder / "disk"), "--disk-size", "128MiB", "--evict-high", "0.6", "--evict-low", "0.4"]
    return Cluster(folder, pool=f"{POOL >> 20}MiB", more=disk, **options)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with made() as two:
        two.wait_ready()
        yield two


@pytest.fixture
def single() -> Iterator[Cluster]:
    """One tier without a mover: it starts in a moment."""
    with made(tiers="a", mover=False) as one:
        one.wait_ready()
        yield one


def state(cluster: Cluster, node: str = "a") -> dict[str, Any]:
    return until("an answer", lambda: dump(cluster.endpoint(node)))


def settled(cluster: Cluster) -> dict[str, Any]:
    """The tier has written out what it had to."""

    def calm() -> dict[str, Any] | None:
        now = state(cluster)
        busy = now["disk"]["writing"] or now["hashing"] or now["grants"] or now["space"]["used_bytes"] > 0.6 * POOL
        return None if busy else now

    return until("room in memory", calm)


def again(cluster: Cluster, engine: Engine) -> dict[str, Any]:
    old = engine.scheduler.session()
    cluster.tiers["a"].start()
    until("ready again", lambda: state(cluster).get("state") == "ready")
    for half in (engine.scheduler, engine.rank):
        until("attached again", lambda half=half: half.session() not in (None, old))  # type: ignore[misc]
    return until("the disk is known again", lambda: now if (now := state(cluster))["disk"]["loaded"] else None)


def check(engine: Engine, keys: list[bytes]) -> bytes:
    """Every page is there and has its bytes; returns where each came from."""
    sources = b""
    for first in range(0, len(keys), BATCH):
        batch = keys[first : first + BATCH]
        answer = until("all of it", lambda batch=batch: found(engine, batch))  # type: ignore[misc]
        sources += bytes(answer.sources)
        assert engine.load(answer) == [page_bytes(key) for key in batch]
    return sources


def found(engine: Engine, batch: list[bytes]) -> Any:
    """A slow disk may outlast a reader's patience; what came too late is there when it asks again."""
    answer = engine.lookup(batch, expected=True, wait_s=10.0)
    if answer.full == len(batch):
        return answer
    assert answer.code in ("gone", "deadline"), answer
    if answer.lease is not None:
        engine.load(answer)
    return None


def on_disk(cluster: Cluster, keys: list[bytes]) -> list[bytes]:
    answer = ask(cluster.endpoint("a"), Probe(keys))
    assert isinstance(answer, Probed)
    return [key for key, *row in zip(keys, answer.states, answer.levels, strict=True) if row == [SEALED, DISK]]


def test_more_than_the_pool_holds_comes_back_also_after_kills_and_on_another_node(cluster: Cluster) -> None:
    assert PAGES * PAGE_BYTES > 1.5 * POOL
    keys = make_keys(PAGES)
    p, d = Engine(cluster, "a", "p").attached(), Engine(cluster, "b", "d").attached()
    for first in range(0, PAGES, BATCH):
        assert len(p.save(keys[first : first + BATCH], f"r{first}").positions) == BATCH
        settled(cluster)
    before = settled(cluster)
    assert before["counts"].get("disk_not_stored", 0) == 0
    below = on_disk(cluster, keys)
    assert len(below) > PAGES - POOL // PAGE_BYTES
    assert ask(cluster.endpoint("a"), Keep([*below[:2], b"n" * 48], 60_000)).states == bytes([1, 1, 0]), "where it is"

    sources = check(p, keys)
    assert sources.count(FROM_DISK) >= len(below) / 2, "reading some evicts others, none of which is written again"
    check(d, keys[:150])
    settled(cluster)

    cluster.tiers["a"].kill()
    after = again(cluster, p)
    assert after["disk"]["pages"] >= len(below) and after["counts"]["disk_found"] == after["disk"]["pages"]
    check(p, keys)

    cluster.tiers["a"].kill()
    cluster.forget_pool("a")  # as a reboot would
    after = again(cluster, p)
    below = on_disk(cluster, keys)
    assert len(below) == after["disk"]["pages"] >= PAGES - POOL // PAGE_BYTES
    assert set(check(p, below)) == {FROM_DISK}, "memory was empty, and no page is asked for twice"
    check(d, below[:100])
    calm = settled(cluster)
    assert calm["disk"]["reading"] == 0 and calm["counts"].get("disk_bad_checksum", 0) == 0
    until("nothing is held", lambda: state(cluster)["references"] == 0)
    p.close()
    d.close()


def test_damaged_files_cost_their_own_pages_only(single: Cluster) -> None:
    keys = make_keys(400)
    p = Engine(single, "a", "p").attached()
    for first in range(0, len(keys), BATCH):
        p.save(keys[first : first + BATCH], f"r{first}")
        settled(single)
    single.tiers["a"].kill()
    single.forget_pool("a")
    files = sorted((single.folder / "disk" / "a").glob("*.pages"))
    with files[0].open("r+b") as file:
        file.seek(2 * PAGE_BYTES + 100)
        file.write(b"damage")
        file.truncate(files[0].stat().st_size - 4096 - GRANULE * 2)
    log = files[0].with_suffix(".log")
    again(single, p)
    below = on_disk(single, keys)
    assert len(below) == state(single)["disk"]["pages"]
    good, lost = 0, 0

    def looked(key: bytes) -> LookupAnswer | None:
        """A slow disk may outlast a reader's patience: nothing is lost, it is asked again."""
        answer = p.lookup([key], wait_s=10.0)
        return None if answer.code in ("deadline", "no_space") else answer

    for key in below:
        answer = until("an end", lambda key=key: looked(key))  # type: ignore[misc]
        if answer.full:
            assert p.load(answer) == [page_bytes(key)]
            good += 1
        else:
            lost += 1
    counts = state(single)["counts"]
    assert lost == counts["disk_bad_checksum"] + counts.get("disk_read_failed", 0) >= 1
    assert good == len(below) - lost > 100 and log.exists()
    p.close()


def test_under_a_key_pages_come_back_after_a_kill_and_under_another_one_they_are_dropped_and_counted() -> None:
    with made(tiers="a", mover=False) as cluster:
        tier = cluster.tiers["a"]
        tier.kill()
        tier.command += ["--disk-key-file", str(cluster.folder / "disk.key")]
        tier.start()
        cluster.wait_ready()
        keys = make_keys(PAGES)
        p = Engine(cluster, "a", "p").attached()
        for first in range(0, PAGES, BATCH):
            assert len(p.save(keys[first : first + BATCH], f"r{first}").positions) == BATCH
            settled(cluster)
        below = on_disk(cluster, keys)
        assert len(below) > PAGES - POOL // PAGE_BYTES
        plain = page_bytes(below[0])[:64]
        assert not any(plain in path.read_bytes() for path in cluster.disk("a").glob("*.pages")), (
            "nothing of it lies there in plain"
        )
        assert FROM_DISK in check(p, below[:BATCH])

        tier.kill()
        cluster.forget_pool("a")
        second = again(cluster, p)
        assert second["counts"]["disk_found"] and not second["counts"].get("disk_wrong_key")
        assert set(check(p, below[BATCH : 2 * BATCH])) == {FROM_DISK}

        tier.kill()
        cluster.forget_pool("a")
        (cluster.folder / "disk.key").write_text("f0" * 32)
        lost = again(cluster, p)
        assert lost["counts"]["disk_wrong_key"] >= second["counts"]["disk_found"]
        assert lost["disk"]["pages"] == 0 and lost["state"] == "ready"
        assert len(p.save(keys[:BATCH], "again").positions) == BATCH
        assert check(p, keys[:BATCH])
        p.close()
