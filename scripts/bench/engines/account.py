"""Whose CPU time a workload took: threads by their part in PegaFlow, beside all that the plain engine takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from engines.load import Throughput
from engines.processes import Thread

PARTS = {
    "pegaflow-saves": "copy threads (inherent)",
    "pegaflow-loads": "copy threads (inherent)",
    "pegaflow-rank-0": "link of the rank",
    "pegaflow-populate": "page table of the pool (once a session)",
}


def account(ours: Sequence[Throughput], plain: Sequence[Throughput]) -> list[dict[str, Any]]:
    """CPU milliseconds per 1,000 ids, by part; `share` of what the plain engine takes for them."""
    tokens = sum(run.tokens for run in ours) / 1000
    whole = sum(run.cpu_seconds for run in plain) / sum(run.tokens for run in plain) * 1e6
    used: dict[str, float] = defaultdict(float)
    for run in ours:
        for thread, seconds in run.cpu.items():
            used[part(thread, run.threads, run.roles)] += seconds * 1e3 / tokens
    used["all"] = sum(run.cpu_seconds for run in ours) * 1e3 / tokens
    rows = sorted(used.items(), key=lambda item: -item[1])
    return [
        {"CPU ms per 1,000 ids": "plain engine, all", "ms": whole, "share": 1.0},
        *({"CPU ms per 1,000 ids": f"connector: {name}", "ms": ms, "share": ms / whole} for name, ms in rows),
    ]


def part(thread: Thread, names: dict[int, str], roles: dict[int, str]) -> str:
    """Threads of PegaFlow by what they do, all others by their process."""
    role = roles.get(thread.pid, "ended")
    known = names.get(thread.tid, thread.name)
    if known in PARTS:
        return PARTS[known]
    if thread.name.startswith("ZMQbg"):
        return f"{role}, ZeroMQ"
    if role == "worker":
        return "worker, main thread" if known == "MainThread" else "worker, others"
    if role == "tier":
        return "tier, event loop" if thread.tid == thread.pid else "tier, checksums (inherent)"
    return role
