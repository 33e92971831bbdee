"""Reads what an engine core's recorder wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engines.figures import Step


class Journal(NamedTuple):
    """`stages`: request → stage → time."""

    steps: list[Step]
    stages: dict[str, dict[str, float]]


class JournalFile:
    """Each `read` gives what was written since the one before; only whole lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Journal:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._offset += len(text)
        steps: list[Step] = []
        stages: dict[str, dict[str, float]] = {}
        for line in text.decode().splitlines():
            kind, *words = line.split()
            match kind:
                case "s":
                    start, scheduled, end = (float(word) for word in words[:3])
                    prefill, decode, loading = (int(word) for word in words[3:])
                    steps.append(Step(start, scheduled, end, prefill, decode, loading))
                case "r":
                    stages.setdefault(words[0], {}).setdefault(words[1], float(words[2]))
        return Journal(steps, stages)
