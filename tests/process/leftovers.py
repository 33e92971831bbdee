"""What a tier holds beyond sealed pages and the members that are attached: nothing, once nobody works with it."""

from __future__ import annotations

from typing import Any

from cluster import Cluster, dump
from pegaflow.common.locks import NAME_HEX
from pegaflow.common.pool import GRANULE

HELD = ("aside", "references", "grants", "hashing", "leases", "pins", "lookups", "waiters", "fetches")


def of_tier(cluster: Cluster, node: str, page_granules: int) -> dict[str, Any]:
    """By name; {} if nothing is left over. For a tier with one engine of one rank, all of whose pages have this size."""
    tier = dump(cluster.endpoint(node))
    if not tier:
        return {f"tier {node}": "silent"}
    found: dict[str, Any] = {name: tier[name] for name in HELD if tier[name]}
    pages = dict(tier["pages"])
    whole = pages.pop("sealed", 0) * page_granules * GRANULE
    found |= {f"{state} pages": count for state, count in pages.items()}
    if (taken := tier["backed_bytes"] - tier["free_bytes"]) != whole:
        found["bytes without a page"] = taken - whole
    found |= {f"disk {name}": tier["disk"][name] for name in ("writing", "reading", "stuck") if tier["disk"][name]}
    found |= _of_disk(cluster, node, tier["disk"]["segments"])
    sessions = tier["sessions"]
    if [len(session["members"]) for session in sessions] != [2] or any(session["stale"] for session in sessions):
        found["sessions"] = sessions
    names = [path.name for path in (cluster.runtime(node) / "sessions").iterdir()]
    if len([name for name in names if len(name) == NAME_HEX]) != 2:
        found["lock files"] = names
    mover = tier["mover"]
    if mover["open"] or mover["given_up"] or mover["movers"] != 1:
        found["mover"] = mover
    return {f"tier {node}: {name}": value for name, value in found.items()}


def _of_disk(cluster: Cluster, node: str, segments: int) -> dict[str, Any]:
    """Files of the disk level, if it has more or fewer of a kind than segments."""
    names = [path.suffix for path in cluster.disk(node).iterdir()] if cluster.disk(node).exists() else []
    there = {kind: names.count(kind) for kind in (".pages", ".log")}
    return {} if set(there.values()) == {segments} else {"files on disk": f"{there}, {segments} segments"}


def of_metaserver(cluster: Cluster) -> dict[str, Any]:
    """Waiting locates, nodes that are missing or too many, and catalogues with another number of pages than their tier has."""
    found = dump(cluster.metaserver_endpoint)
    if not found or found["waiters"]:
        return {"metaserver": found}
    listed = {node["node"]: node["sealed"] for node in found["nodes"]}
    there = {node: dump(cluster.endpoint(node)).get("announced", {}).get("sealed", 0) for node in cluster.tiers}
    return {} if listed == there else {"metaserver": f"lists {listed}, the tiers have {there}"}
