"""What a reload of the configuration changes in a running tier. Pure."""

from __future__ import annotations

from pegaflow.services.tier.config import TierConfig
from pegaflow.services.tier.state import TierState


def retune(state: TierState, config: TierConfig) -> None:
    """Quotas, watermarks and checks are those of `config` from the next event on."""
    state.pages.space.retune(config.space)
    state.verifier.retune(config.verify_every)
    state.scrubber.rate = config.scrub_rate
