"""The counters that the proof reads, by what they mean, and how much they grew between two moments."""

from __future__ import annotations

from typing import NamedTuple

from deployment import metrics
from deployment.http import Server
from deployment.ports import Ports


class Counters(NamedTuple):
    """Totals of one moment, or differences of two. `d_` is the decode engine, `p_` the prefill engine.

    On D the forwarded first token is the prompt's last position, and vLLM always computes that one. The connector
    counts all positions (`d_positions`) and, apart, the last ones (`d_last_positions`); vLLM counts what it computed
    (`d_vllm_computed`) and requests (`d_requests`). Without a prefill on D the four grow by one per request. `replays`:
    requests that the router did not splice. `p_positions`: all that P computed of prompts.
    """

    d_positions: float
    d_last_positions: float
    d_vllm_computed: float
    d_requests: float
    d_pages_loaded: float
    d_tails_loaded: float
    p_pages_saved: float
    p_tails_saved: float
    b_pages_fetched: float
    replays: float
    p_positions: float
    a_disk_pages_read: float
    b_disk_pages_read: float

    @property
    def d_prompt_positions(self) -> int:
        """Positions of clients' prompts that D computed itself. A replay has no forwarded token: its last one counts."""
        return round(self.d_positions - self.d_last_positions + self.replays)

    def since(self, before: Counters) -> Counters:
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))

    def plus(self, other: Counters) -> Counters:
        return Counters(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def read(ports: Ports) -> Counters:
    """Totals of now, from P, D, both tiers and the router. Raises HttpFailure."""
    p, d = metrics.take(Server(ports.p)), metrics.take(Server(ports.d))
    a = metrics.take(Server(ports.tier_a_health))
    b, router = metrics.take(Server(ports.tier_b_health)), metrics.take(Server(ports.router))
    return Counters(
        d_positions=d.total("pegaflow_prompt_positions_computed_total"),
        d_last_positions=d.total("pegaflow_prompt_last_positions_computed_total"),
        d_vllm_computed=d.total("vllm:prompt_tokens_by_source_total", source="local_compute"),
        d_requests=d.total("vllm:request_success_total"),
        d_pages_loaded=d.total("pegaflow_pages_loaded_total"),
        d_tails_loaded=d.total("pegaflow_tails_loaded_total"),
        p_pages_saved=p.total("pegaflow_pages_saved_total"),
        p_tails_saved=p.total("pegaflow_tails_saved_total"),
        b_pages_fetched=b.total("pegaflow_tier_pages_fetched_total"),
        replays=router.total("pegaflow_router_requests_total", plan="replay"),
        p_positions=p.total("pegaflow_prompt_positions_computed_total"),
        a_disk_pages_read=a.total("pegaflow_tier_disk_pages_read_total"),
        b_disk_pages_read=b.total("pegaflow_tier_disk_pages_read_total"),
    )


def pages_held(health_port: int) -> float:
    """Pages that a tier can give now, saved by its engines or fetched. Raises HttpFailure."""
    return metrics.take(Server(health_port)).total("pegaflow_tier_pages_sealed_now")


class Handoffs(NamedTuple):
    """Times from P's answer to D's first token: how many, and their sum in seconds."""

    requests: float
    seconds: float


def handoffs(ports: Ports) -> Handoffs:
    """Asked before and after a single request, the difference is that request's. Raises HttpFailure."""
    router = metrics.take(Server(ports.router))
    name = "pegaflow_router_handoff_seconds"
    return Handoffs(router.total(f"{name}_count"), router.total(f"{name}_sum"))
