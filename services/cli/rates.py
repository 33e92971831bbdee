"""What happened between two looks at a tier, per second. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOVED = ("sealed_bytes", "fetched_bytes", "disk_read_bytes", "disk_written_bytes")


def rates(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Both are status documents of one process life, any field may be missing; `seconds` lie between them.

    Hit rates are shares of the pages that lookups asked for; None where nothing was asked.
    """
    old, new = _object(before, "counts"), _object(after, "counts")

    def delta(name: str) -> int:
        return _int(new.get(name)) - _int(old.get(name))

    asked, lookups = delta("asked_pages"), delta("lookups")
    hits, remote, disk = delta("hit_pages"), delta("hit_remote"), delta("hit_disk")
    per_s = 1 / seconds if seconds > 0 else 0.0
    return {
        "hit": _share(hits, asked),
        "hit_memory": _share(hits - remote - disk, asked),
        "hit_remote": _share(remote, asked),
        "hit_disk": _share(disk, asked),
        "lookups_per_s": round(lookups * per_s, 1),
        "loaded_pages_per_s": round(hits * per_s, 1),
        "saved_pages_per_s": round(delta("sealed") * per_s, 1),
        "evicted_pages_per_s": round(delta("evicted") * per_s, 1),
        "moved_bytes_per_s": round(sum(map(delta, MOVED)) * per_s),
        "lookup_ms": round(delta("lookup_us") / lookups / 1e3, 3) if lookups > 0 else None,
        **standing(after),
    }


def standing(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a single look shows: the pool and the queues."""
    pool, free = told.get("pool_bytes"), told.get("free_bytes")
    whole = isinstance(pool, int) and isinstance(free, int) and pool > 0
    return {
        "state": str(told.get("state", "?")),
        "pool_used": round(1 - free / pool, 4) if whole else None,  # type: ignore[operator]
        "lookups_open": _count(told.get("lookups")),
        "fetches_open": _count(told.get("fetches")),
        "grants_open": _count(told.get("grants")),
        "leases_open": _count(told.get("leases")),
        "hashing": _count(told.get("hashing")),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _object(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = told.get(name)
    return found if isinstance(found, Mapping) else {}


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else len(value) if isinstance(value, list | dict) else None
