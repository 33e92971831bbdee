"""Whose CPU time a workload took: threads by their part in PegaFlow, beside all that the plain engine takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from engines.load import Throughput
from engines.processes import Thread

COMPUTE = "worker, main thread"
LEAST_SHARE = 0.0005
PARTS = {
    "pegaflow-saves": "copy threads (inherent)",
    "pegaflow-loads": "copy threads (inherent)",
    "pegaflow-rank-0": "link of the rank",
    "pegaflow-populate": "page table of the pool (once a session)",
}


def account(ours: Sequence[Throughput], plain: Sequence[Throughput]) -> list[dict[str, Any]]:
    """CPU milliseconds per 1,000 ids, by part, on both sides; `share` of all that the plain engine takes for them."""
    mine, other = _by_part(ours), _by_part(plain)
    whole = other["all"]
    return [
        {"CPU ms per 1,000 ids": name, "connector": mine[name], "plain": other.get(name, 0.0), "share": mine[name] / whole}
        for name in sorted(mine, key=lambda name: -mine[name])
        if mine[name] / whole >= LEAST_SHARE
    ]


def compute_cpu(run: Throughput) -> float:
    """CPU seconds of the worker's main thread, which computes. Copies elsewhere cost it cache and memory bandwidth only."""
    return sum(seconds for thread, seconds in run.cpu.items() if part(thread, run.threads, run.roles) == COMPUTE)


def _by_part(runs: Sequence[Throughput]) -> dict[str, float]:
    tokens = sum(run.tokens for run in runs) / 1000
    used: dict[str, float] = defaultdict(float)
    for run in runs:
        for thread, seconds in run.cpu.items():
            for name in (part(thread, run.threads, run.roles), "all"):
                used[name] += seconds * 1e3 / tokens
    return used


def part(thread: Thread, names: dict[int, str], roles: dict[int, str]) -> str:
    """Threads of PegaFlow by what they do, all others by their process."""
    role = roles.get(thread.pid, "ended")
    known = names.get(thread.tid, thread.name)
    if known in PARTS:
        return PARTS[known]
    if thread.name.startswith("ZMQbg"):
        return f"{role}, ZeroMQ"
    if role == "worker":
        return COMPUTE if known == "MainThread" else "worker, others"
    if role == "tier":
        return "tier, event loop" if thread.tid == thread.pid else "tier, checksums (inherent)"
    return role
