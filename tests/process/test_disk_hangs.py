"""A disk that does not answer: the tier goes on from memory, says so, and leaves when it is told to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Engine, dump, make_keys, page_bytes, told, until
from fault_control import FaultControl
from pegaflow.common import faults
from pegaflow.common.lifecycle import EX_OK

pytestmark = pytest.mark.timeout(120)

FOR_EVER = "delay=3000"
"""A thread that does not come back; the process is to be gone long before."""
OPTIONS = ("--disk-size", "16MiB", "--evict-high", "0.2", "--evict-low", "0.1", "--drain-timeout", "500ms")


@pytest.fixture
def control() -> Iterator[FaultControl]:
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    with FaultControl(folder) as made:
        yield made


@pytest.fixture
def cluster(control: FaultControl) -> Iterator[Cluster]:
    folder = control.marks.parent
    with Cluster(folder, "a", mover=False, pool="16MiB", more=("--disk-dir", str(folder / "disk"), *OPTIONS)) as made:
        made.wait_ready()
        yield made


def disk(cluster: Cluster) -> dict[str, Any]:
    view: dict[str, Any] = dump(cluster.endpoint("a")).get("disk", {})
    return view


def loads(engine: Engine, keys: list[bytes]) -> bool:
    answer = engine.lookup(keys)
    return engine.load(answer) == [page_bytes(key) for key in keys] if answer.lease is not None else False


def test_a_tier_whose_disk_hangs_serves_from_memory_and_ends_when_it_is_told_to(cluster: Cluster, control: FaultControl) -> None:
    tier, engine = cluster.tiers["a"], Engine(cluster, "a").attached()
    first, second = make_keys(80), make_keys(20, 1)
    control.arm(f"tier.disk_write.before_pages@1:{FOR_EVER}")
    engine.save(first, "first")
    until("it is seen to hang", lambda: disk(cluster).get("state") == "hangs")
    (thread,) = disk(cluster)["threads"]
    assert thread["doing"] == "write" and told(cluster.endpoint("a"))["counts"]["disk_hangs"] == 1
    assert told(cluster.endpoint("a"))["state"] == "ready"
    engine.save(second, "second")
    until("second is there", lambda: loads(engine, second))
    assert tier.stop() == EX_OK

    control.arm(f"tier.segment.before_read:{FOR_EVER}")
    (cluster.disk("a") / f"{99:016x}.pages").write_bytes(b"")
    (cluster.disk("a") / f"{99:016x}.log").write_bytes(b"")
    old = engine.scheduler.session()
    tier.start()
    until("ready without its disk", lambda: dump(cluster.endpoint("a")).get("state") == "ready")
    assert disk(cluster)["state"] == "loading" and [one["doing"] for one in disk(cluster)["threads"]] == ["load"]
    for half in (engine.scheduler, engine.rank):
        until("attached again", lambda half=half: half.session() not in (None, old))  # type: ignore[misc]
    assert loads(engine, second), "the pool was left to this life"
    assert tier.stop() == EX_OK

    control.arm(f"tier.start.before_disk_lock:{FOR_EVER}")
    tier.start()
    until("it hangs while it starts", lambda: faults.seen(control.marks))
    assert tier.stop() == EX_OK

    control.arm("")
    old = engine.scheduler.session()
    tier.start()
    until("all in order", lambda: disk(cluster).get("state") == "ok")
    for half in (engine.scheduler, engine.rank):
        until("attached again", lambda half=half: half.session() not in (None, old))  # type: ignore[misc]
    assert loads(engine, second)
    engine.close()
