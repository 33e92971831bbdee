"""What an engine core holds at one moment. Runs inside the core, called by name over vLLM's own utility channel."""

from __future__ import annotations

from typing import Any


def held(core: Any) -> dict[str, int]:
    """Everything that must be zero when an engine is idle: requests, references of blocks, saves, lookups, leases,
    and statistics that were not reported yet."""
    scheduler = core.scheduler
    connector = scheduler.connector
    blocks = scheduler.kv_cache_manager.block_pool.blocks
    found = {
        "unfinished": int(scheduler.has_requests()),
        "references": sum(block.ref_cnt for block in blocks if not block.is_null),
    }
    for child in getattr(connector, "sub_connectors", [] if connector is None else [connector]):
        half = getattr(child, "_scheduler", None)
        if half is None:
            continue
        for name, value in (
            ("saves", half.saves.open_saves),
            ("pinned", len(half.saves.pinned())),
            ("lookups", half.loads.open_lookups),
            ("leases", half.loads.open_leases),
            ("loads", half.loads.requests),
            ("requests", len(half._requests)),
            ("uncounted", int(bool(half._counters))),
        ):
            found[name] = found.get(name, 0) + value
    return found


def fingerprint(core: Any) -> str:
    """What this engine's keys begin with, in hex."""
    connector = core.scheduler.connector
    children = getattr(connector, "sub_connectors", [connector])
    found = {child._scheduler.keys.fingerprint.hex() for child in children if hasattr(child, "_scheduler")}
    (one,) = found
    return str(one)
