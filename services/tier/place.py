"""What a tier tells everyone about itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Name, life, pool and endpoints of one tier."""

    node: str
    epoch: int
    pool_path: str
    pool_bytes: int
    table_path: str
    intents: str
    events: str
    control: str
