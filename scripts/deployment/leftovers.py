"""What tiers and router hold for requests: nothing, once these have ended."""

from __future__ import annotations

from typing import Final

from deployment import metrics
from deployment.http import Server
from deployment.ports import Ports

OF_A_TIER: Final = ("leases", "grants", "lookups_waiting", "fetches", "pages_pending_now")


def held(ports: Ports) -> dict[str, float]:
    """By name, what is not zero. Raises HttpFailure."""
    found: dict[str, float] = {}
    for tier, port in (("a", ports.tier_a_health), ("b", ports.tier_b_health)):
        seen = metrics.take(Server(port))
        found |= {f"tier {tier}: {name}": seen.total(f"pegaflow_tier_{name}") for name in OF_A_TIER}
    found["router"] = metrics.take(Server(ports.router)).total("pegaflow_router_in_flight_requests")
    return {name: value for name, value in found.items() if value}
