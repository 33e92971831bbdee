"""Things that carry bytes one after the other: network cards, the hasher's thread, disks, copies to and from a device."""

from __future__ import annotations


class Pipe:
    """First come, first served. `rate` in bytes per second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.free_at = 0.0
        self.busy_s = 0.0
        self.bytes = 0

    def carry(self, size: int, now: float) -> float:
        """When the last byte is through."""
        seconds = size / self.rate
        self.free_at = max(now, self.free_at) + seconds
        self.busy_s += seconds
        self.bytes += size
        return self.free_at


def carry_between(source: Pipe, target: Pipe, size: int, now: float) -> float:
    """Through both at the pace of the slower one, once both are free; when the last byte is through.

    Reads come in batches of at most 128 MiB (services/tier/fetches.py), so readers of one tier take turns as they would share it.
    """
    seconds = size / min(source.rate, target.rate)
    ended = max(now, source.free_at, target.free_at) + seconds
    for pipe in (source, target):
        pipe.free_at = ended
        pipe.busy_s += seconds
        pipe.bytes += size
    return ended
