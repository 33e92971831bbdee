"""How long to wait before looking at open READs again: at once while bytes move, up to 0.2 ms while they do not."""

from __future__ import annotations

from typing import Final

_FIRST_S: Final = 20e-6
_SHORT_MAX_S: Final = 200e-6
# Nothing has moved for this long: the owner is stopped or slow, and a finer look would only burn a core.
_STUCK_AFTER_S: Final = 0.05
_STUCK_S: Final = 1e-3


class Pace:
    """Backs off while looks find nothing, starts over when one does."""

    __slots__ = ("_moved_at", "_now", "_pause")

    def __init__(self) -> None:
        self._pause = 0.0
        self._moved_at = 0.0
        self._now = 0.0

    def posted(self, now: float) -> None:
        """A READ was posted at `now` (seconds)."""
        self.looked(worked=True, now=now)

    def looked(self, *, worked: bool, now: float) -> None:
        """A look at `now` moved bytes or not."""
        self._now = now
        if worked:
            self._pause = 0.0
            self._moved_at = now
        else:
            self._pause = min(max(self._pause * 2, _FIRST_S), _SHORT_MAX_S)

    def pause(self) -> float:
        """Seconds to wait now."""
        return _STUCK_S if self._now - self._moved_at > _STUCK_AFTER_S else self._pause
