"""The numeric path: which positions are computed together in a step. Pure.

A position's numbers depend, in their last bits, on how many others are computed beside it. So two answers must be equal only
if every position was computed in a step of the same size, over numbers that were computed so too. Pages hold what was computed
when the prompt was cold; what remains is who computes the positions behind them, and in a step of how many.
"""

from __future__ import annotations

from enum import StrEnum

from deployment.cases import BLOCK_SIZE

from .prompts import CHUNK


class Way(StrEnum):
    """How a prompt is answered."""

    DIRECT = "direct vLLM"
    AGAIN = "direct vLLM, own cache"
    COLD = "P/D first token"
    DISK = "P/D, tiers restarted from disk"
    REMOTE = "D, warm from the remote tier"


class Path(StrEnum):
    """Against the plain vLLM, cold."""

    SAME = "same"
    OWN_CACHE = "as from vLLM's own cache"
    """Not as the cold one, but as the plain vLLM computes that finds the prompt's full blocks in its own cache."""
    OTHER = "not the same"
    """No plain vLLM computes so."""


def last_step(ids: int) -> int:
    """Positions in the last step of a cold prompt."""
    return (ids - 1) % CHUNK + 1


def after_own_cache(ids: int) -> int:
    """Positions that vLLM computes when its own cache has all full blocks: whole blocks, and at least one position is left."""
    return (ids - 1) % BLOCK_SIZE + 1


def after_full_pages(ids: int) -> int:
    """Positions that P computes when its tier has all full pages: all rows of them may be loaded, but one position is left."""
    return ids % BLOCK_SIZE or 1


def path(way: Way, ids: int) -> Path:
    """Of the first token and all that follow."""
    match way:
        case Way.DIRECT | Way.COLD:
            return Path.SAME
        case Way.AGAIN:
            step = after_own_cache(ids)
        case Way.DISK:
            step = after_full_pages(ids)
        case Way.REMOTE:
            step = 1
    if step == last_step(ids):
        return Path.SAME
    return Path.OWN_CACHE if step == after_own_cache(ids) else Path.OTHER
