"""Every message, one module per subject. Importing this package registers all kinds with the codec."""

from __future__ import annotations

from pegaflow.common.wire.messages import attach, catalogue, facts, inspection, loads, operate, saves, space, transfer

__all__ = ["attach", "catalogue", "facts", "inspection", "loads", "operate", "saves", "space", "transfer"]
