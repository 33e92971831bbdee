"""A streamed answer as its client saw it: which token came when, and the latencies that follow from it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

from pegaflow.services.router.sse import EventParser


@dataclass(frozen=True, slots=True)
class Heard:
    """Times are seconds of one monotonic clock. `events`: when each came, and how many tokens it brought. `late`: how long after
    its time the request was sent, because the answer before was not there. `error`: empty for a whole answer.
    """

    session: int
    turn: int
    prompt: int
    late: float
    sent: float
    ended: float
    events: tuple[tuple[float, int], ...]
    ids: tuple[int, ...]
    finish: str
    plan: str
    error: str

    def wrong(self, wanted: int) -> str:
        """Why this is not an answer of `wanted` ids; empty if it is one."""
        if self.error:
            return self.error
        if len(self.ids) != wanted or self.finish != "length":
            return f"{len(self.ids)} ids and {self.finish!r}, wanted {wanted} and 'length'"
        return ""

    @property
    def due(self) -> float:
        """When its time had come: users wait from then on, however late the request is sent."""
        return self.sent - self.late

    @property
    def ttft(self) -> float:
        return self.events[0][0] - self.due

    @property
    def whole(self) -> float:
        """To the last token."""
        return self.events[-1][0] - self.due

    @property
    def tpot(self) -> float:
        """Seconds per token, from the second one on.

        A router in first-token mode holds P's token back until D's first one is there, so the gap between these two is in
        `ttft` and not between tokens. On every side it is left out here and in `gaps`.
        """
        steady = self._steady()
        tokens = sum(count for _, count in steady[1:])
        return (steady[-1][0] - steady[0][0]) / tokens if tokens else 0.0

    @property
    def gaps(self) -> list[float]:
        """Between events, from the one with the second token on. Tokens that came in one event have no gap."""
        return [after - before for (before, _), (after, _) in pairwise(self._steady())]

    @property
    def merged(self) -> int:
        """Tokens that came with another one."""
        return sum(count - 1 for _, count in self.events)

    def _steady(self) -> tuple[tuple[float, int], ...]:
        tokens = 0
        for number, (_, count) in enumerate(self.events):
            tokens += count
            if tokens >= 2:
                return self.events[number:]
        return self.events[-1:]


class Reading:
    """Takes a stream's bytes as they come."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int]] = []
        self.ids: list[int] = []
        self.finish = ""
        self.done = False
        self.error = ""
        self._parser = EventParser()

    def feed(self, chunk: bytes, now: float) -> None:
        """Raises StreamBroken, ValueError and LookupError for what is no stream of a completion."""
        for event in self._parser.feed(chunk):
            if event == "[DONE]":
                self.done = True
                continue
            said = json.loads(event)
            if "error" in said:
                self.error = event[:300]
                continue
            for choice in said["choices"]:
                if ids := choice.get("token_ids"):
                    self.events.append((now, len(ids)))
                    self.ids += ids
                self.finish = choice.get("finish_reason") or self.finish
