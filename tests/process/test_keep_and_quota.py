"""A real tier whose model has a quota: probe, keep, unkeep and eviction as a router or an operator sees them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import FINGERPRINT, PAGE_BYTES, Cluster, Engine, ask, make_keys, page_bytes, told, until
from pegaflow.common.pool import GRANULE
from pegaflow.common.wire.errors import RemoteError
from pegaflow.common.wire.messages.loads import Done
from pegaflow.common.wire.messages.space import SEALED, UNKNOWN, Keep, Kept, Probe, Unkeep

pytestmark = pytest.mark.timeout(120)

PAGES = 40
SLOT = -(-PAGE_BYTES // GRANULE) * GRANULE
KEPT = 12


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PEGAFLOW_TIER_QUOTA", f"{FINGERPRINT.hex()}={PAGES * SLOT}")
    monkeypatch.setenv("PEGAFLOW_TIER_KEEP_SHARE", str(KEPT * SLOT / (64 << 20)))
    folder = Path("/tmp") / f"pf-{os.getpid()}-{os.urandom(3).hex()}"  # ipc paths are short
    folder.mkdir(mode=0o700)
    with Cluster(folder, tiers="a", mover=False) as made:
        made.wait_ready()
        yield made


def states(cluster: Cluster, keys: list[bytes]) -> list[int]:
    return list(ask(cluster.endpoint("a"), Probe(keys)).states)


def saved(cluster: Cluster, engine: Engine, keys: list[bytes], request: str) -> None:
    engine.save(keys, request)
    until("sealed", lambda: states(cluster, keys) == [SEALED] * len(keys))


def test_a_kept_prefix_outlives_what_a_quota_pushes_out_and_goes_when_it_is_let_go(cluster: Cluster) -> None:
    endpoint = cluster.endpoint("a")
    engine = Engine(cluster, "a").attached()
    prefix, more, rest = make_keys(KEPT - 2), make_keys(PAGES, 1), make_keys(PAGES, 2)
    assert states(cluster, prefix) == [UNKNOWN] * len(prefix)
    saved(cluster, engine, prefix, "prefix")
    kept = ask(endpoint, Keep([*prefix[-1:], more[0]], 60_000))
    assert kept == Kept(bytes([1, 0]), len(prefix) * SLOT), "with the pages that it continues"

    saved(cluster, engine, more[: PAGES - len(prefix)], "more")
    saved(cluster, engine, rest[:20], "rest")
    assert states(cluster, prefix) == [SEALED] * len(prefix)
    with pytest.raises(RemoteError, match="keep_full"):
        ask(endpoint, Keep(rest[:3], 60_000))
    space = told(endpoint)["space"]
    mine = space["namespaces"][FINGERPRINT.hex()]
    assert mine["used_bytes"] == mine["quota_bytes"] == PAGES * SLOT
    assert mine["kept_bytes"] == space["kept_bytes"] == len(prefix) * SLOT and mine["evicted"] == 20

    answer = engine.lookup(prefix, [])
    assert engine.load(answer) == [page_bytes(key) for key in prefix]
    until("the lease's end", lambda: told(endpoint)["leases"] == 0)
    assert ask(endpoint, Unkeep(prefix)) == Done()
    saved(cluster, engine, make_keys(PAGES, 3), "last")
    assert states(cluster, prefix) == [UNKNOWN] * len(prefix)
    assert told(endpoint)["space"]["kept_bytes"] == 0
    engine.close()
