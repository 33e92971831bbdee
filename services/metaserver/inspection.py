"""What a metaserver's state holds, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pegaflow.services.metaserver.state import MetaserverState


def dump(state: MetaserverState, now: float) -> dict[str, Any]:
    """Counts of everything that is held."""
    nodes = state.nodes.by_name.values()
    return {
        "nodes": [
            {
                "node": node.name,
                "epoch": f"{node.epoch:016x}",
                "state": str(node.state(now)),
                "draining": node.draining,
                "package": node.package,
                "requests": node.requests,
                "events": node.events,
                "control": node.control,
                "sealed": node.clone.sealed,
                "pending": node.clone.pending,
                "syncing": node.clone.syncing,
                "seq": node.clone.seen,
                "silent_ms": int((now - node.heard_at) * 1e3),
            }
            for node in nodes
        ],
        "left": [
            {
                "node": left.node,
                "epoch": f"{left.epoch:016x}",
                "reason": left.reason,
                "ago_ms": int((now - left.at) * 1e3),
                "sealed": left.sealed,
                "requests": left.requests,
            }
            for left in state.left
        ],
        "index": len(state.index),
        "keys": {"sealed": sum(node.clone.sealed for node in nodes), "pending": sum(node.clone.pending for node in nodes)},
        "waiters": len(state.waiters),
        "counts": dict(state.counts),
    }
