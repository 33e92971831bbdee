"""Engines that do not live, by the word of their tier or of the router that asks them."""

from __future__ import annotations

from pegaflow.services.cli.doctor.finding import Finding, error
from pegaflow.services.cli.doctor.patient import Patient


def judge(patient: Patient) -> list[Finding]:
    """Of a tier: those that show no life. Of a router: those whose health check fails."""
    found = []
    for row in patient.rows("engines"):
        if patient.service == "tier" and row.get("stale") is True:
            todo = "its process is stopped or hangs: pegaflow sessions has its id; kill -CONT it, or restart it"
            found.append(error("engine_silent", f"engine {row.get('engine')} on {patient.node}", "it shows no life", todo))
        if patient.service == "router" and row.get("healthy") is False:
            where = f"{patient.name} → {row.get('role')} {row.get('url')}"
            todo = "look at that vLLM: its supervisor, its log; it gets no requests until its /health answers"
            found.append(error("engine_unhealthy", where, str(row.get("why") or "its health check fails"), todo))
    return found
