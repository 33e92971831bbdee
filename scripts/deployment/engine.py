"""What is asked of an engine beside answers: whether it saves into its tier, and that it forgets its own cache."""

from __future__ import annotations

from typing import Final

from deployment import counters
from deployment.answers import ask
from deployment.cases import Case
from deployment.http import Server
from deployment.supervision import wait_for

POLL_SECONDS: Final = 0.02


def saves(engine: Server, tier_health: int, fresh: Case) -> bool:
    """Asks for a token of a prompt that nobody has seen, of a block at least. Raises HttpFailure.

    A save needs all of the engine's processes attached, and they come back one by one; so it is the one sign that they are.
    """
    before = counters.pages_held(tier_health)
    ask(engine, fresh._replace(body=fresh.body | {"max_tokens": 1}))
    return wait_for(lambda: counters.pages_held(tier_health) > before, 1)


def forget_prefixes(engine: Server, seconds: float) -> bool:
    """Empties vLLM's own prefix cache, and only that; False: some save still pins a block. Needs VLLM_SERVER_DEV_MODE=1 there.

    Raises HttpFailure.
    """

    def forgotten() -> bool:
        return bool(engine.post("/reset_prefix_cache", {}).get("success"))

    return wait_for(forgotten, seconds, poll_seconds=POLL_SECONDS)
