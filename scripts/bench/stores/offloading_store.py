"""vLLM's own offloading connector, which keeps pages in the engine's process."""

from __future__ import annotations

from .store import Store


def offloading_store(pool_bytes: int) -> Store:
    """Nothing to start; whether the engine starts with it is another question: the CPU build has no streams to copy on."""
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": pool_bytes},
    }
    return Store("vLLM's OffloadingConnector, memory in the engine's process", transfer, {})
