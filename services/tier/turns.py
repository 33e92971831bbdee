"""When a turn of the tier was, pure: pages note the number of the turn that used them, people ask for a time."""

from __future__ import annotations

from bisect import bisect_left

MAX_MARKS = 4096


class Turns:
    """A mark every heartbeat; when there are too many, every second one goes: the far past is known less exactly."""

    def __init__(self) -> None:
        self._turns: list[int] = []
        self._times: list[float] = []

    def mark(self, turn: int, now: float) -> None:
        """This turn is now. Turns and times grow."""
        if self._turns and self._turns[-1] == turn:
            return
        if len(self._turns) >= MAX_MARKS:
            del self._turns[1::2], self._times[1::2]
        self._turns.append(turn)
        self._times.append(now)

    def time(self, turn: int, now: float) -> float | None:
        """When that was, at the latest; None: before this life of the tier."""
        if not self._turns or turn < self._turns[0]:
            return None
        at = bisect_left(self._turns, turn)
        return self._times[at] if at < len(self._times) else now
