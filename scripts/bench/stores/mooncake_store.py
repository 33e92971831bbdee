"""Mooncake Store under vLLM's own connector: its master, and the memory, which the engine's worker brings (mode embedded)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from catalogue_mooncake import PACKAGE, MooncakeMaster
from children import Children, free_port
from layered_venv import layered_venv, packages_of
from tiers.mooncakes import SETTINGS

from deployment import metrics
from deployment.http import Server

from .store import Store

BUFFER: Final = 512 << 20
"""Bytes that the client keeps for transfers beside the pool."""
FLAGS: Final = ("--client_ttl=3600",)
"""A held engine sends no heartbeat, and after 10 s its memory would leave the store."""


def mooncake_store(children: Children, pool_bytes: int) -> Store:
    """Its processes end with `children`. Raises Missing."""
    master = MooncakeMaster.run(children.spawn, free_port, *FLAGS)
    config = children.folder / "mooncake.json"
    document = {
        "mode": "embedded",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master.at,
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": pool_bytes,
        "local_buffer_size": BUFFER,
    }
    config.write_text(json.dumps(document), encoding="utf-8")
    transfer = {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        # Names the socket between the connector's halves; the default is one for the whole machine.
        "kv_connector_extra_config": {"lookup_rpc_port": free_port()},
    }
    settings = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
    about = f"{PACKAGE}, MooncakeStoreConnector, mode embedded (memory in the engine's process), tcp, {settings}"
    here = {"MOONCAKE_CONFIG_PATH": str(config), "VLLM_HOST_IP": "127.0.0.1", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1"}
    python = layered_venv("mooncake-engine", packages_of(Path(master.python).parent))
    return Store(
        about, transfer, {master.pid: "master"}, environment=SETTINGS | here, python=python, loaded=_loaded, populate=pool_bytes
    )


def _loaded(engine: Server) -> float:
    """Keys that were got without an error."""
    return metrics.take(engine).total("vllm:mooncake_store_operation_keys_total", operation="load_get", status="ok")
