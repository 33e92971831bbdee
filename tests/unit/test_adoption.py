"""What a life takes over from the one before."""

from __future__ import annotations

import itertools

from pegaflow.common.bus.events import session_topic
from pegaflow.common.pool import GRANULE
from pegaflow.services.tier import events
from pegaflow.services.tier.adoption import Remains
from pegaflow.services.tier.state import Place, TierState


def test_a_life_that_was_never_used_leaves_its_memory_to_the_next() -> None:
    """It has backed the pool and cut no slab. Nobody says "backed" again, because it is."""
    granules, numbers = 256, itertools.count(1)
    place = Place("a", 2, "", granules * GRANULE, "", "", "", "")
    tier = TierState(
        place, lambda n: next(numbers).to_bytes(n, "little"), session_topic, remains=Remains(floor=1, at=1.0, backed=granules)
    )
    tier.handle(events.SlabsEnded(), 1.0)
    tier.validate()
    found = tier.dump()
    assert found["free_bytes"] == found["backed_bytes"] == granules * GRANULE
