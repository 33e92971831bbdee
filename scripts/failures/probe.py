"""The request that is caught."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread

from deployment.http import Server
from deployment.reference import Expected
from deployment.traffic import Outcome, Seen, follow


class Probe(Thread):
    """One stream, followed beside the caller."""

    def __init__(self, server: Server, expected: Expected) -> None:
        super().__init__(name="probe")
        self._server, self._expected = server, expected
        self._ids: list[int] = []
        self._outcome: Outcome | None = None

    def start(self) -> Sequence[int]:  # type: ignore[override]
        """Returns the ids that have come, as they come."""
        super().start()
        return self._ids

    def run(self) -> None:
        def heard(ids: Sequence[int]) -> bool:
            self._ids[:] = ids
            return True

        try:
            self._outcome = follow(self._server, self._expected, heard)
        except Exception as error:  # an answer that cannot even be read
            self._outcome = Outcome(self._expected.case.name, Seen.WRONG, f"{type(error).__name__}: {error}")

    def wait(self) -> Outcome:
        self.join()
        assert self._outcome is not None
        return self._outcome
