"""What tiers, router and engines hold for requests: nothing, once these have ended. And the files that a deployment has."""

from __future__ import annotations

from collections import Counter
from typing import Final

from deployment import metrics
from deployment.http import Server
from deployment.plan import Plan
from deployment.ports import Ports

OF_A_TIER: Final = (
    "leases",
    "grants",
    "lookups_waiting",
    "fetches",
    "pages_pending_now",
    "mover_reads",
    "mover_quarantined_bytes",
)
OF_AN_ENGINE: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
"""The last: blocks that a request has, or that are pinned. Cached ones that nobody holds do not count."""


def held(ports: Ports) -> dict[str, float]:
    """Of tiers and router: by name, what is not zero. Raises HttpFailure."""
    found: dict[str, float] = {}
    for tier, port in (("a", ports.tier_a_health), ("b", ports.tier_b_health)):
        seen = metrics.take(Server(port))
        found |= {f"tier {tier}: {name}": seen.total(f"pegaflow_tier_{name}") for name in OF_A_TIER}
    found["router"] = metrics.take(Server(ports.router)).total("pegaflow_router_in_flight_requests")
    return {name: value for name, value in found.items() if value}


def engines_hold(ports: Ports) -> dict[str, float]:
    """The same of P and D, as of their last step: what ends without one shows only after the next. Raises HttpFailure."""
    found: dict[str, float] = {}
    for engine, port in (("P", ports.p), ("D", ports.d)):
        seen = metrics.take(Server(port))
        found |= {f"{engine}: {name}": seen.total(f"vllm:{name}") for name in OF_AN_ENGINE}
    return {name: value for name, value in found.items() if value}


def files(plan: Plan) -> Counter[str]:
    """Sockets, locks and pools: how many, by folder and kind."""
    found = [path for folder in (plan.runtime, plan.pool) for path in folder.rglob("*") if not path.is_dir()]
    return Counter(f"{path.parent.name}/{path.suffix}" for path in found)
