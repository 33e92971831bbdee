"""What users say: texts of exact lengths in ids, the same for every configuration; no two begin alike."""

from __future__ import annotations

from pathlib import Path

from deployment.cases import PromptMaker
from turns.shape import Shape


class Workload:
    """All of it is made here, so that no time goes into it while somebody is measured."""

    def __init__(self, shape: Shape, model: Path, model_name: str) -> None:
        self.shape = shape
        self._maker = PromptMaker(model, model_name)
        self._pieces = [
            [self._text(f"guest {session} in hour {turn}", shape.piece(turn)) for turn in range(shape.turns)]
            for session in range(shape.sessions)
        ]
        self._spare = 0

    def piece(self, session: int, turn: int) -> list[int]:
        """What is said in this turn, without what was said before."""
        return self._pieces[session][turn]

    def spare(self) -> list[int]:
        """As long as a first prompt, of no conversation, and never twice."""
        self._spare += 1
        return self._text(f"stranger {self._spare}", self.shape.first)

    def _text(self, topic: str, length: int) -> list[int]:
        ids: list[int] = self._maker.completion(topic, length).body["prompt"]
        assert len(ids) == length
        return ids
