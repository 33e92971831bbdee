"""PegaFlow: a tier and a metaserver, and the connector that finds them."""

from __future__ import annotations

from stack import Stack

from deployment import metrics
from deployment.http import Server

from .store import Store


def pegaflow_store(stack: Stack) -> Store:
    """`stack`: with one tier, named a; it runs already."""
    metaserver, tier = stack.pids
    extra = {"pegaflow.runtime_dir": str(stack.folder / "a"), "pegaflow.tier": stack.endpoint("a")}
    transfer = {
        "kv_connector": "PegaKVConnector",
        "kv_connector_module_path": "pegaflow.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra | {"pegaflow.pd_tail_save": True, "pegaflow.pd_tail_load": True},
    }
    about = "PegaKVConnector, one tier with its mover, one metaserver"
    return Store(about, transfer, {metaserver: "metaserver", tier: "tier"}, descendants="mover", loaded=_loaded)


def _loaded(engine: Server) -> float:
    """Pages."""
    return metrics.take(engine).total("pegaflow_pages_loaded_total")
