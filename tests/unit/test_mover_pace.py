"""Looks come at once while bytes move, then further and further apart."""

from __future__ import annotations

from pegaflow.services.tier.mover.pace import Pace


def test_pauses_grow_to_a_fifth_of_a_millisecond_and_start_over() -> None:
    pace = Pace()
    pace.posted(1.0)
    assert pace.pause() == 0.0
    pauses = []
    for look in range(8):
        pace.looked(worked=False, now=1.0 + look / 1000)
        pauses.append(pace.pause())
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < 50e-6
    assert pauses[-1] == 200e-6
    pace.looked(worked=True, now=1.01)
    assert pace.pause() == 0.0


def test_a_stuck_read_is_looked_at_less_often() -> None:
    pace = Pace()
    pace.posted(1.0)
    pace.looked(worked=False, now=1.2)
    assert pace.pause() == 1e-3
    pace.looked(worked=True, now=1.3)
    assert pace.pause() == 0.0
