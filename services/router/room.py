"""A bounded quantity that requests share: connections, or bytes of bodies. Pure."""

from __future__ import annotations


class Room:
    """`limit` 0: none. What was taken is given back, by whoever took it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    def has(self, amount: int) -> bool:
        return not self._limit or self.taken + amount <= self._limit

    def take(self, amount: int) -> bool:
        """False: there is no room for it, and nothing was taken."""
        if not self.has(amount):
            return False
        self.taken += amount
        return True

    def give(self, amount: int) -> None:
        assert 0 <= amount <= self.taken, "more was given back than taken"
        self.taken -= amount


class Share:
    """What one request holds of a room; grows, and is given back as a whole."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._held = 0

    def grow(self, amount: int) -> bool:
        """False: there is no room for it."""
        if not self._room.take(amount):
            return False
        self._held += amount
        return True

    def close(self) -> None:
        """Idempotent."""
        self._room.give(self._held)
        self._held = 0
