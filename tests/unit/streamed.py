"""Events of streams, and what became of them, for the tests of the flow."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pegaflow.services.router.openai import Json
from pegaflow.services.router.steps import Chunk, Frames


def frame(data: str) -> Frames:
    """One that came alone."""
    return Frames([data])


def read(chunks: Sequence[Chunk]) -> list[Json]:
    """As a client reads them, however they were made."""
    return [json.loads(chunk.removeprefix("data: ")) if isinstance(chunk, str) else chunk for chunk in chunks]
