"""A connector with the classic fault, to show that the comparison finds it: it counts the tokens of a request itself, and does
not start again when the request was preempted."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

from pegaflow.connector import PegaKVConnector
from pegaflow.connector.save_tracker import Offer, Progress, SaveTracker


class _Counting:
    """Stands before the tracker, with a count of its own in the place of vLLM's."""

    def __init__(self, tracker: SaveTracker) -> None:
        self._tracker = tracker
        self._counted: dict[str, int] = defaultdict(int)

    def wants(self, progress: Progress) -> bool:
        self._counted[progress.request_id] += progress.scheduled
        return self._tracker.wants(self._wrong(progress))

    def progressed(self, progress: Progress, table: Any) -> Offer | None:
        return self._tracker.progressed(self._wrong(progress), table)

    def _wrong(self, progress: Progress) -> Progress:
        return dataclasses.replace(progress, computed=self._counted[progress.request_id] - progress.scheduled)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tracker, name)


class AccumulatingConnector(PegaKVConnector):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._scheduler is not None:
            saving: Any = self._scheduler.saving
            saving.tracker = _Counting(saving.tracker)
