"""A connector to stand beside PegaFlow's in vLLM's MultiConnector. It hands over metadata of its own at start, like NIXL's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    SupportsHMA,
)


@dataclass
class SiblingHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]  # vLLM is Any here
    address: str = "here"


@dataclass
class SiblingMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is Any here
    note: str = ""


@dataclass
class Seen:
    handshakes: list[dict[tuple[int, int], KVConnectorHandshakeMetadata]] = field(default_factory=list)
    matched: int = 0


class SiblingConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # vLLM is Any here
    """Has `seen.matched` tokens for every request and receives what it is told to in `received`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.seen = Seen()
        self.received: set[str] = set()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return SiblingHandshake()

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        if not all(isinstance(found, SiblingHandshake) for found in metadata.values()):
            raise ValueError("the metadata of another connector")
        self.seen.handshakes.append({(0, rank): found for rank, found in metadata.items()})

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.seen.matched, bool(self.seen.matched)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return SiblingMetadata("step")

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        received, self.received = self.received, set()
        return KVConnectorTransferResults(finished_recving=received)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
