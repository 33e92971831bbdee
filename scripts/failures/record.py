"""A run: what was asked for, what came of it, and how it ended. Files are written after each scenario, whatever ends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from report import Goal, as_json, at_most, head, put, show

from failures.result import RECOVERY_SECONDS, Result, matrix, picture, total

UNDER_WAY: Final = "under way"
"""What a run says that nobody could end: it was killed, or it goes on."""
COMPLETE: Final = "complete"
INTERRUPTED: Final = "interrupted"


@dataclass(slots=True)
class Record:
    """`asked`: how many scenarios. `ended`: one of the words above, or the error. The files are written at once and anew."""

    asked: int
    json_file: Path | None = None
    svg: Path | None = None
    results: list[Result] = field(default_factory=list)
    ended: str = UNDER_WAY

    def __post_init__(self) -> None:
        self._write()

    def keep(self, result: Result) -> None:
        self.results.append(result)
        self._write()

    def end(self, how: str) -> None:
        """Prints what there is, too."""
        self.ended = how
        self._write()
        if self.results:
            show([[result.row() for result in self.results], matrix(self.results)], self.goals(), None)

    def goals(self) -> list[Goal]:
        found = total(self.results)
        return [
            at_most("wrong answers", found.wrong, 0),
            at_most("scenarios that failed", found.failed, 0),
            at_most("scenarios that were missed", found.missed, 0),
            at_most("scenarios that were slow", found.slow, 0),
            at_most("scenarios not played", self.asked - len(self.results), 0),
            at_most("longest recovery (s)", found.slowest, RECOVERY_SECONDS),
        ]

    def _write(self) -> None:
        if self.json_file is not None:
            document = {
                **head(),
                "asked": self.asked,
                "played": len(self.results),
                "ended": self.ended,
                "rows": [result.row() for result in self.results],
                "matrix": matrix(self.results),
                "goals": [asdict(goal) for goal in self.goals()],
            }
            put(self.json_file, as_json(document))
        if self.svg is not None and self.results:
            put(self.svg, picture(self.results))
