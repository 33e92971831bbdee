"""What came of a scenario, and all of them as a matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deployment.traffic import Outcome, Seen
from failures.scenario import Phase, Scenario, allowed


@dataclass(frozen=True, slots=True)
class Result:
    """`probe`: the request that was caught. `others`: those beside it. `failure`: why the scenario could not be run to its end.

    Seconds: `back` until the victim was ready again, `whole` from then until a new prompt went its whole way. `found`: a prompt
    that only tier a had was found there again. `left`: what was still held, or too many, by name.
    """

    scenario: Scenario
    probe: Outcome | None = None
    others: Counter[Seen] = field(default_factory=Counter)
    back: float = 0.0
    whole: float = 0.0
    found: bool = False
    left: dict[str, Any] = field(default_factory=dict)
    failure: str = ""

    def faults(self) -> list[str]:
        """Why this scenario is not as it has to be; [] if it is."""
        if self.failure or self.probe is None:
            return [self.failure or "not run"]
        found = []
        if self.probe.seen not in allowed(self.scenario):
            found.append(f"the client saw: {self.probe.seen} {self.probe.text}")
        if self.others[Seen.WRONG]:
            found.append(f"{self.others[Seen.WRONG]} wrong answers beside it")
        if not self.found:
            found.append("an earlier prefix was not found again")
        if self.left:
            found.append(f"left over: {self.left}")
        return found

    def row(self) -> dict[str, Any]:
        return {
            "phase": str(self.scenario.phase),
            "victim": self.scenario.victim,
            "how": str(self.scenario.how),
            "client": "-" if self.probe is None else str(self.probe.seen),
            "others": ", ".join(f"{count} {seen}" for seen, count in sorted(self.others.items())),
            "back s": round(self.back, 2),
            "whole s": round(self.whole, 2),
            "found again": "yes" if self.found else "NO",
            "left": ", ".join(f"{name}: {value}" for name, value in self.left.items()) or "nothing",
            "verdict": "; ".join(self.faults()) or "as it should be",
        }


def matrix(results: Sequence[Result]) -> list[dict[str, Any]]:
    """A row for each victim and how, a column for each phase: what the client saw, and seconds until all was whole again."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result in results:
        victim, how = result.scenario.victim, str(result.scenario.how)
        row = rows.setdefault((victim, how), {"victim": victim, "how": how} | {str(phase): "" for phase in Phase})
        seen = "-" if result.probe is None else str(result.probe.seen)
        row[str(result.scenario.phase)] = f"{'FAILED: ' if result.faults() else ''}{seen} {result.whole:.1f}"
    return list(rows.values())
