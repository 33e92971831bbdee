"""How many requests each client has open, and whether it may open another."""

from __future__ import annotations


class Admission:
    """`limit`: open requests per name; 0: no limit. Each `enter` that returns True needs one `leave`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[str, int] = {}

    def enter(self, name: str) -> bool:
        count = self._open.get(name, 0)
        if self.limit and count >= self.limit:
            return False
        self._open[name] = count + 1
        return True

    def leave(self, name: str) -> None:
        left = self._open[name] - 1
        if left:
            self._open[name] = left
        else:
            del self._open[name]  # names come and go with reloads

    def open(self, name: str) -> int:
        return self._open.get(name, 0)

    def validate(self) -> None:
        """Raises AssertionError unless every count is within its bounds, as long as `limit` was not lowered."""
        for name, count in self._open.items():
            assert 0 < count <= (self.limit or count), f"{name} has {count} open"
