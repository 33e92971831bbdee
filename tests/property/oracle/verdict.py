"""What the models found wrong. The connector catches what its hooks raise, so an assertion inside them could go unheard."""

from __future__ import annotations


class Verdict:
    def __init__(self) -> None:
        self.faults: list[str] = []

    def demand(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)
