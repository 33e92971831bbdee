"""Several choices in one draw. What hypothesis does for each draw costs more than a whole step of the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st


def packed(*choices: Sequence[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """A strategy for tuples with one of each of `choices`: a byte decides each, so each shrinks towards its first one."""
    assert all(len(choice) <= 128 for choice in choices)  # or the last ones would be rare

    def unpack(drawn: bytes) -> tuple[Any, ...]:
        return tuple([choice[byte % len(choice)] for choice, byte in zip(choices, drawn, strict=True)])

    return st.binary(min_size=len(choices), max_size=len(choices)).map(unpack)
