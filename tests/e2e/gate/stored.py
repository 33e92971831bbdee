"""What a tier has in its pool, read from the pool itself: past every process that could be wrong about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cluster import Cluster, dump, until
from pegaflow.common.pool import GRANULE, PoolView, SlotEntry, SlotState

from .keys import Keys

HELD = ("aside", "references", "grants", "hashing", "leases", "pins", "lookups", "waiters", "fetches")


@dataclass(frozen=True, slots=True)
class StoredPage:
    """A sealed page: `rows` of its block are valid."""

    rows: int
    data: bytes


Pages = dict[tuple[bytes, int], StoredPage]
"""By key and shard."""


@contextmanager
def _looking_on(cluster: Cluster, node: str) -> Iterator[PoolView]:
    folder = cluster.pools / node
    (pool,), (table,) = folder.glob("pool-*"), folder.glob("table-*")
    view = PoolView.open(pool, table, pool.stat().st_size, writable=False)
    try:
        yield view
    finally:
        view.close()


def quiet(cluster: Cluster, node: str) -> None:
    """Waits until the tier holds nothing for anybody and owes nobody a page."""
    last: dict[str, object] = {}

    def nothing() -> bool:
        found = dump(cluster.endpoint(node))
        last.update({name: found.get(name) for name in (*HELD, "pages")})
        return bool(found) and not any(found[name] for name in HELD) and not found["pages"].get("pending")

    try:
        until("a quiet tier", nothing)
    except AssertionError as error:
        raise AssertionError(f"the tier still holds: {last}") from error


def _entries(view: PoolView, keys: Keys) -> Iterator[tuple[int, SlotEntry]]:
    for slot in range(view.backed // GRANULE):
        if view.generation(slot) == 0:  # never granted
            continue
        entry = view.load(slot)
        assert entry is not None, f"torn entry of slot {slot}"
        if entry.state is SlotState.SEALED and entry.key.startswith(keys.fingerprint):
            yield slot, entry


def sealed(cluster: Cluster, node: str, keys: Keys) -> Pages:
    """Every sealed page of these engines. The tier must be quiet."""
    pages: Pages = {}
    with _looking_on(cluster, node) as view:
        for slot, entry in _entries(view, keys):
            offset = slot * GRANULE
            page = StoredPage(entry.rows, bytes(view.memory[offset : offset + entry.length]))
            assert pages.setdefault((entry.key, entry.shard), page) is page, "one key in two slots"
    return pages


def names(cluster: Cluster, node: str, keys: Keys) -> frozenset[bytes]:
    """The keys of those pages, without their bytes."""
    with _looking_on(cluster, node) as view:
        return frozenset(entry.key for _, entry in _entries(view, keys))
