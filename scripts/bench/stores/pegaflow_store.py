"""PegaFlow: a tier and a metaserver, and the connector that finds them."""

from __future__ import annotations

from typing import Final

from stack import Stack

from deployment import metrics
from deployment.http import Server

from .store import Store

TAILS: Final = ("pegaflow.pd_tail_save", "pegaflow.pd_tail_load")


def pegaflow_store(stack: Stack, *, tails: bool = False) -> Store:
    """`stack`: with one tier, named a; it runs already. `tails`: of prompts, are saved and loaded, which is off by itself."""
    metaserver, tier = stack.pids
    extra: dict[str, object] = {"pegaflow.runtime_dir": str(stack.folder / "a"), "pegaflow.tier": stack.endpoint("a")}
    transfer = {
        "kv_connector": "PegaKVConnector",
        "kv_connector_module_path": "pegaflow.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra | dict.fromkeys(TAILS if tails else (), True),
    }
    options = " ".join(TAILS) if tails else "all options as they are by themselves"
    about = f"PegaKVConnector, one tier with its mover, one metaserver, {options}"
    return Store(about, transfer, {metaserver: "metaserver", tier: "tier"}, descendants="mover", loaded=_loaded)


def _loaded(engine: Server) -> float:
    """Pages."""
    return metrics.take(engine).total("pegaflow_pages_loaded_total")
