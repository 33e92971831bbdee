from __future__ import annotations

import pytest
from pegaflow.services.router.room import Room, Share


def test_a_room_has_a_limit_and_gets_everything_back() -> None:
    room = Room(10)
    first, second = Share(room), Share(room)
    assert first.grow(4)
    assert first.grow(3)
    assert not second.grow(4)
    assert second.grow(3)
    assert not room.has(1)
    assert room.taken == 10
    first.close()
    first.close()
    assert room.taken == 3
    second.close()
    assert room.taken == 0


def test_without_a_limit_it_only_counts() -> None:
    room = Room(0)
    assert room.take(1 << 40)
    assert room.taken == 1 << 40
    with pytest.raises(AssertionError, match="more was given back"):
        room.give(1 << 41)
