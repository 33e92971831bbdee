"""The part that lives inside vLLM: saves KV blocks into a tier and loads them back."""

from typing import Any

__all__ = ["PegaKVConnector"]


def __getattr__(name: str) -> Any:
    # On demand, so that the pure parts can be used where there is no vLLM.
    if name == "PegaKVConnector":
        from pegaflow.connector.connector import PegaKVConnector

        return PegaKVConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
