"""Where prompt positions came from, from what engines and tiers count. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from deployment.metrics import Snapshot

Seen = dict[str, Snapshot]
"""Counters by who has them: `mixed 1`, `mixed 2`, or `P`, `D`, `tier a`, `tier b`, `router`."""

SOURCE = "vllm:prompt_tokens_by_source_total"


class Growth(NamedTuple):
    before: Seen
    after: Seen

    def of(self, who: str, name: str, **labels: str) -> float:
        """0 for somebody who is not there."""
        if who not in self.after:
            return 0.0
        return self.after[who].total(name, **labels) - self.before[who].total(name, **labels)

    @property
    def decode_positions(self) -> int:
        """Positions of clients' prompts that D computed itself. A replay has no forwarded token: its last position counts."""
        computed = self.of("D", "pegaflow_prompt_positions_computed_total")
        last = self.of("D", "pegaflow_prompt_last_positions_computed_total")
        return round(computed - last + self.of("router", "pegaflow_router_requests_total", plan="replay"))

    @property
    def prefilled(self) -> int:
        """Positions of clients' prompts that P, or mixed engines, computed."""
        return sum(_computed(self, who) for who in self.after if _is_mixed(who) or who == "P")

    @property
    def preempted(self) -> int:
        """Requests that an engine had no room for any longer while they ran."""
        return round(sum(self.of(who, "vllm:num_preemptions_total") for who in self.after))

    @property
    def evicted(self) -> int:
        """Pages that the tiers had no room for any longer."""
        return round(sum(self.of(who, "pegaflow_tier_pages_evicted_total") for who in ("tier a", "tier b")))


def by_level(growth: Growth) -> list[dict[str, Any]]:
    """A row per engine: positions of its prompts by where they came from, then pages that its lookups found, by level.

    An engine asks its tier only for what its own prefix cache does not have. What vLLM counts as external it was promised; the
    connector counts what was computed in the end.
    """
    rows = []
    for who in growth.after:
        if not _is_mixed(who) and who not in ("P", "D"):
            continue
        row: dict[str, Any] = {"engine": who, "computed": _computed(growth, who)}
        row["own prefix cache"] = round(growth.of(who, SOURCE, source="local_cache_hit"))
        row["from the tier"] = round(growth.of(who, SOURCE, source="external_kv_transfer"))
        tier = {"P": "tier a", "D": "tier b"}.get(who, "")
        if tier:
            for source, name in (("local", "memory"), ("remote", "other tier"), ("disk", "disk")):
                row[f"pages: {name}"] = round(growth.of(who, "pegaflow_lookup_pages_total", source=source))
            row["missed"] = round(growth.of(who, "pegaflow_pages_missed_total"))
            row["saved"] = round(growth.of(who, "pegaflow_pages_saved_total"))
            row["evicted there"] = round(growth.of(tier, "pegaflow_tier_pages_evicted_total"))
            row["no room"] = round(growth.of(tier, "pegaflow_tier_no_space_total"))
        rows.append(row)
    return rows


def _is_mixed(who: str) -> bool:
    return who.startswith("mixed")


def _computed(growth: Growth, who: str) -> int:
    if who == "D":
        return growth.decode_positions
    if _is_mixed(who):
        return round(growth.of(who, SOURCE, source="local_compute"))
    return round(growth.of(who, "pegaflow_prompt_positions_computed_total"))
