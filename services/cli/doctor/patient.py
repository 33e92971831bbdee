"""One service as the doctor sees it: what it said of itself, and how the others see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Reachability(NamedTuple):
    """`code` empty: it can be reached from there."""

    owner: str
    socket: str
    endpoint: str
    code: str


@dataclass(frozen=True, slots=True)
class Absent:
    """A service that did not answer. `code`: why; `seen`: who tried to connect to it, and why it could not; empty: it could."""

    service: str
    node: str
    endpoint: str
    code: str
    seen: Sequence[tuple[str, str]] = ()

    @property
    def name(self) -> str:
        return f"{self.service} {self.node}"


@dataclass(frozen=True, slots=True)
class Patient:
    """`told` is the service's own word, a JSON object of which any field may be missing or of another type.

    `offset_s`: how far its clock is ahead of ours, `doubt_s` how much of that may be the way there and back. `reach_unknown`,
    `disk_unknown`: why it did not say what it can connect to, or how fast its disk is; empty: it did, or was not asked.
    """

    service: str
    node: str
    told: Mapping[str, Any] = field(default_factory=dict)
    offset_s: float = 0.0
    doubt_s: float = 0.0
    reached: Sequence[Reachability] = ()
    disk: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0
    reach_unknown: str = ""
    disk_unknown: str = ""

    @property
    def name(self) -> str:
        return f"{self.service} {self.node}"

    def part(self, *path: str) -> Mapping[str, Any]:
        """An object in what it told; empty where there is none."""
        found: Any = self.told
        for step in path:
            found = found.get(step) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}

    def rows(self, name: str) -> list[Mapping[str, Any]]:
        """A list of objects in what it told."""
        found = self.told.get(name)
        return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []

    def option(self, name: str) -> Any:
        """An option's value; None where it has no such option."""
        return next((row.get("value") for row in self.rows("options") if row.get("name") == name), None)


def number(value: Any) -> float | None:
    """A number, and nothing else."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Engine(NamedTuple):
    """An engine that is attached to a tier."""

    name: str
    node: str
    fingerprint: str
    factors: Mapping[str, str]
    versions: Mapping[str, str]

    @property
    def where(self) -> str:
        return f"engine {self.name} on {self.node}"


def engines(patients: Sequence[Patient]) -> list[Engine]:
    """All engines of all tiers that have told how they name pages."""
    return [
        Engine(
            str(row.get("engine")),
            patient.node,
            str(row.get("fingerprint") or ""),
            _texts(row.get("factors")),
            _texts(row.get("versions")),
        )
        for patient in patients
        for row in patient.rows("engines")
        if row.get("fingerprint")
    ]


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, Mapping) else {}
